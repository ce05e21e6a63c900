// The tools that were offered: name, what it says it does, and its arguments.
import { JsonTree } from "../../parts/json-tree";
import { Said, Visible, whole } from "../../parts/said";
import type { ToolSpec } from "../../source/schema";

export function ToolList({ tools }: { tools: ToolSpec[] }) {
  return (
    <ul className="tool-list">
      {tools.slice(0, 200).map((tool, place) => (
        <li key={place}>
          <bdi className="mono tool-name">
            <Visible text={whole(tool.name, 200)} />
          </bdi>
          {tool.description && (
            <div className="small soft">
              <Said text={tool.description} fold={400} label="description" />
            </div>
          )}
          <JsonTree label="arguments" value={tool.parameters ?? {}} />
        </li>
      ))}
    </ul>
  );
}
