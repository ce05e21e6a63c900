// The terms of a member's reward as a waterfall chart and as numbers.
import { VisibleText } from "../../parts/text";
import { finite, number, signed } from "../../format";
import type { Float, Member } from "../../source/schema";
import type { Row } from "./numbers";

/** One scale for all members, so that bars can be compared across columns. */
export interface Extent {
  low: number;
  high: number;
}

export function extentOf(members: readonly Member[]): Extent {
  let low = 0;
  let high = 0;
  for (const member of members) {
    let sum = 0;
    for (const term of member.terms) {
      sum += finite(term.value) ?? 0;
      low = Math.min(low, sum);
      high = Math.max(high, sum);
    }
    low = Math.min(low, finite(member.reward) ?? 0);
    high = Math.max(high, finite(member.reward) ?? 0);
  }
  return low === high ? { low: 0, high: 1 } : { low: Math.max(low, -1e300), high: Math.min(high, 1e300) };
}

interface TermsProperties {
  member: Member;
  /** Its place among the members. */
  place: number;
  rows: readonly Row[];
  extent: Extent;
  /** Whether each reward is its one term: then a sum would say it twice. */
  oneTerm: boolean;
}

export function Terms({ member, place, rows, extent, oneTerm }: TermsProperties) {
  let sum = 0;
  return (
    <table className="group-terms">
      <caption className="only-heard">What the reward is the sum of</caption>
      <tbody>
        {(oneTerm ? [] : rows).map((row) => {
          const value = row.values[place];
          const from = sum;
          sum += finite(value) ?? 0;
          return <Term key={row.name} name={row.name} value={value} from={from} to={sum} extent={extent} />;
        })}
        <Term name={oneTerm ? `reward = ${rows[0]?.name ?? ""}` : "= reward"} value={member.reward} from={0} to={finite(member.reward) ?? 0} extent={extent} total />
      </tbody>
    </table>
  );
}

interface TermProperties {
  name: string;
  value: Float | null | undefined;
  from: number;
  to: number;
  extent: Extent;
  total?: boolean;
}

function Term({ name, value, from, to, extent, total = false }: TermProperties) {
  const at = (x: number): number => (100 * (x - extent.low)) / (extent.high - extent.low);
  const tone = total ? "group-bar-total" : to < from ? "group-bar-down" : "group-bar-up";
  return (
    <tr className={total ? "group-total" : undefined}>
      <th scope="row">
        <VisibleText text={name.slice(0, 60)} />
      </th>
      <td className="group-bar" aria-hidden="true">
        <span className="group-zero" style={{ left: `${at(0)}%` }} />
        {to !== from && <span className={tone} style={{ left: `${at(Math.min(from, to))}%`, width: `max(2px, ${Math.abs(at(to) - at(from))}%)` }} />}
      </td>
      <td className="number">{total ? number(value) : signed(value)}</td>
    </tr>
  );
}
