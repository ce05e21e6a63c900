// The numbers behind a member's reward; those in which members differ stand out.
import { number } from "../../format";
import { Name } from "../../parts/name";
import type { Row } from "./numbers";

export function RewardNumbers({ rows, place, caption }: { rows: readonly Row[]; place: number; caption: string }) {
  return (
    <table className="group-numbers">
      <caption>{caption}</caption>
      <tbody>
        {rows.map((row) => (
          <tr key={row.name} className={row.differs ? "group-differs" : undefined}>
            <th scope="row">
              <Name text={row.name} most={80} />
            </th>
            <td className="number">{number(row.values[place])}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
