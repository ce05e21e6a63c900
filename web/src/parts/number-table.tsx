// Named numbers as a table: reward data and metrics.
import { number } from "../format";
import type { Float } from "../source/schema";
import { VisibleText, truncated } from "./text";

interface NumberTableProperties {
  /** The accessible name of the table. */
  caption: string;
  numbers: Record<string, Float | boolean>;
  /** The same numbers of the previous step, to show changes. */
  before?: Record<string, Float | boolean> | undefined;
}

export function NumberTable({ caption, numbers, before }: NumberTableProperties) {
  const names = Object.keys(numbers);
  if (names.length === 0) return null;
  const compares = before !== undefined && names.some((name) => name in before);
  return (
    <table className="number-table">
      <caption className="only-heard">{caption}</caption>
      <thead className="only-heard">
        <tr>
          <th scope="col">name</th>
          <th scope="col">value</th>
          {compares && <th scope="col">the step before</th>}
        </tr>
      </thead>
      <tbody>
        {names.slice(0, 500).map((name) => (
          <tr key={name}>
            <th scope="row">
              <bdi>
                <VisibleText text={truncated(name, 200)} />
              </bdi>
            </th>
            <td className="number mono" title={String(numbers[name])}>
              {number(numbers[name], 4)}
            </td>
            {compares && (
              <td className="number mono faint" title="The step before">
                {name in before && before[name] !== numbers[name] ? number(before[name], 4) : ""}
              </td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
