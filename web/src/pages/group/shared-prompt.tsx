// The task: the prompt that all members share, once, and the data that the task is made of.
import { plural } from "../../format";
import { JsonTree } from "../../parts/json-tree";
import { MessageView } from "../../parts/message";
import type { GroupComparison } from "../../source/schema";

export function SharedPrompt({ run, group }: { run: string; group: GroupComparison }) {
  const data = Object.keys(group.task_data).length > 0;
  return (
    <section className="card group-shared" aria-label="The task">
      <header>
        <h2>Shared prompt</h2>
        {group.shared.length > 0 && <span className="small soft">{plural(group.shared.length + group.shared_omitted, "message")} that every member was sent</span>}
      </header>
      <div className="body stack">
        {group.shared.length === 0 && <p className="soft">The first prompts have no message in common: each member has its own below.</p>}
        {group.shared.map((excerpt, place) => (
          <MessageView key={place} run={run} message={excerpt.message} cut={excerpt.omitted} />
        ))}
        {group.shared_omitted > 0 && <p className="small soft">{plural(group.shared_omitted, "more message")} not shown here.</p>}
        {data && (
          <details className="group-data">
            <summary>Task data, with the reference answer where there is one</summary>
            <JsonTree value={group.task_data} open={2} />
          </details>
        )}
      </div>
    </section>
  );
}
