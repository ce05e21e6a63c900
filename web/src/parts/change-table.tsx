// What changed in a value, as a table of paths with the value before and after.
import type { Json } from "../source/schema";
import { type Change, pathText } from "./changes";
import { JsonLeaf, JsonTree } from "./json-tree";
import { VisibleText, truncated } from "./text";

const SIGNS = { added: "+", removed: "−", changed: "~" } as const;

export function ChangeTable({ changes }: { changes: readonly Change[] }) {
  return (
    <table className="change-table">
      <thead>
        <tr>
          <th scope="col">
            <span className="only-heard">kind</span>
          </th>
          <th scope="col" className="change-path">
            path
          </th>
          <th scope="col">before</th>
          <th scope="col">after</th>
        </tr>
      </thead>
      <tbody>
        {changes.map((change) => {
          const path = pathText(change.path);
          return (
            <tr key={path} className={change.kind}>
              <td className="mono" title={change.kind}>
                <span aria-hidden="true">{SIGNS[change.kind]}</span>
                <span className="only-heard">{change.kind}</span>
              </td>
              <th scope="row" className="mono">
                <bdi>
                  <VisibleText text={truncated(path, 300)} />
                </bdi>
              </th>
              <td className="mono">{change.kind === "added" ? "" : <Value value={change.before} />}</td>
              <td className="mono">{change.kind === "removed" ? "" : <Value value={change.after} />}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

function Value({ value }: { value: Json }) {
  return value !== null && typeof value === "object" ? <JsonTree value={value} /> : <JsonLeaf value={value} long={120} />;
}
