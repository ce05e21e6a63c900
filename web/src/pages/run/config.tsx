// The configuration of the run: its main values, and all of it as JSON.
import { Name, plainText, LongText } from "../../parts/text";
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
      <LongText text={typeof value === "string" ? value : JSON.stringify(value, null, 2)} label="value" />
    </code>
  );
}

function glance(entries: readonly [string, Json][]): string {
  const single = entries.filter(([, value]) => value === null || typeof value !== "object").slice(0, 40);
  return plainText(single.map(([name, value]) => `${plainText(name, 40)} ${plainText(String(value), 40)}`).join(" · "), 160);
}
