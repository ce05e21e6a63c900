// The numbers behind a member's reward; those in which members differ stand out.
import { number } from "../../format";
import { Visible } from "../../parts/said";
import type { Row } from "./numbers";

/** How much of a name is shown. */
const MOST = 80;

export function RewardNumbers({ rows, place, caption }: { rows: readonly Row[]; place: number; caption: string }) {
  return (
    <table className="group-numbers">
      <caption>{caption}</caption>
      <tbody>
        {rows.map((row) => (
          <tr key={row.name} className={row.differs ? "group-differs" : undefined}>
            <th scope="row">
              <bdi>
                <Visible text={row.name.slice(0, MOST)} />
                {row.name.length > MOST && "…"}
              </bdi>
            </th>
            <td className="number">{number(row.values[place])}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
