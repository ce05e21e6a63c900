// What the run was started with: its configuration, read at a glance, and as JSON for the rest.
import { Name } from "../../parts/name";
import { plain } from "../../parts/plain";
import { Said } from "../../parts/said";
import type { Json } from "../../source/schema";

export function Config({ config }: { config: Json }) {
  const entries = config !== null && typeof config === "object" && !Array.isArray(config) ? Object.entries(config) : null;
  if (config === null || entries?.length === 0) return null;
  return (
    <details className="card run-config">
      <summary>
        <h2>Configuration</h2>
        {entries !== null && <span className="small faint run-config-glance"><bdi>{glance(entries)}</bdi></span>}
      </summary>
      <div className="body">
        {entries === null ? (
          <Written value={config} />
        ) : (
          <dl>
            {entries.slice(0, 500).map(([name, value]) => (
              <div key={name}>
                <dt>
                  <Name text={name} />
                </dt>
                <dd>
                  <Written value={value} />
                </dd>
              </div>
            ))}
          </dl>
        )}
      </div>
    </details>
  );
}

function Written({ value }: { value: Json }) {
  return (
    <code>
      <Said text={typeof value === "string" ? value : JSON.stringify(value, null, 2)} label="value" />
    </code>
  );
}

function glance(entries: readonly [string, Json][]): string {
  const single = entries.filter(([, value]) => value === null || typeof value !== "object").slice(0, 40);
  return plain(single.map(([name, value]) => `${plain(name, 40)} ${plain(String(value), 40)}`).join(" · "), 160);
}
