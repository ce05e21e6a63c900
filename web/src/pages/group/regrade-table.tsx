// Old against new: what a regrade did to the members of the group.
import { finite, number, plural } from "../../format";
import { Badge } from "../../parts/badge";
import { Change, changeOf } from "../../parts/old-new";
import { Name } from "../../parts/text";
import { Link } from "../../router";
import type { Member, Regrade } from "../../source/schema";
import type { GroupState } from "./group-state";
import { nameOf } from "./numbers";

/** At most so many regrades are shown, the latest first. */
const MOST = 3;
const WIDTH = 240;
const HEIGHT = 18;

interface Line {
  member: Member;
  regrade: Regrade;
}

export function RegradeTable({ members, state }: { members: readonly Member[]; state: GroupState }) {
  const names = [...new Set(members.flatMap((member) => member.regrades.map((regrade) => regrade.name)))].reverse();
  return names.slice(0, MOST).map((name) => <OneRegrade key={name} name={name} lines={linesOf(members, name)} state={state} />);
}

const linesOf = (members: readonly Member[], name: string): Line[] =>
  members.flatMap((member) => {
    const regrade = member.regrades.find((one) => one.name === name);
    return regrade === undefined ? [] : [{ member, regrade }];
  });

function OneRegrade({ name, lines, state }: { name: string; lines: readonly Line[]; state: GroupState }) {
  const moved = lines.filter(({ regrade }) => (changeOf(regrade.old, regrade.new) ?? 0) !== 0).length;
  const values = lines.flatMap(({ regrade }) => [finite(regrade.old), finite(regrade.new)]).filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const [before, after] = [ranks(lines.map(({ regrade }) => finite(regrade.old))), ranks(lines.map(({ regrade }) => finite(regrade.new)))];
  return (
    <section className="card group-regrade" aria-label={`Old against new: ${name}`}>
      <header>
        <div className="row wrap">
          <h2>Old against new</h2>
          <Name text={name} most={80} />
          {lines.some(({ regrade }) => regrade.is_reward) && <Badge tone="accent">the rewards now</Badge>}
        </div>
        <span className="small soft">
          {moved === 0 ? "no member moved" : `${plural(moved, "member")} of ${lines.length} moved`}
        </span>
      </header>
      <div className="group-scroll" role="region" aria-label="Old against new, as a table" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Member</th>
              <th scope="col" className="number">
                Old
              </th>
              <th scope="col" className="number">
                New
              </th>
              <th scope="col" className="number">
                Change
              </th>
              <th scope="col" className="number">
                Rank
              </th>
              <th scope="col" className="group-dumbbells" aria-hidden="true">
                ○ old ● new
              </th>
            </tr>
          </thead>
          <tbody>
            {lines.map(({ member, regrade }, place) => (
              <tr key={member.id} {...(member === state.selected ? { "aria-current": "true" as const } : {})}>
                <th scope="row">
                  <Link to={state.to({ member: member.id, compare: null })}>{nameOf(member)}</Link>
                </th>
                <td className="number mono faint">{number(regrade.old)}</td>
                <td className="number mono">{regrade.new === null ? <span className="bad">failed</span> : number(regrade.new)}</td>
                <td className="number">
                  <Change value={changeOf(regrade.old, regrade.new)} />
                </td>
                <td className="number">{rankText(before[place] ?? null, after[place] ?? null)}</td>
                <td aria-hidden="true">
                  <Dumbbell regrade={regrade} low={low} high={high} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** The old value as a ring and the new one as a dot, on one scale for all members. */
function Dumbbell({ regrade, low, high }: { regrade: Regrade; low: number; high: number }) {
  const at = (value: number): number => 6 + (high === low ? 0.5 : (value - low) / (high - low)) * (WIDTH - 12);
  const [before, after] = [finite(regrade.old), finite(regrade.new)];
  const change = changeOf(regrade.old, regrade.new) ?? 0;
  const color = change > 0 ? "var(--good)" : change < 0 ? "var(--bad)" : "var(--ink-faint)";
  return (
    <svg className="group-dumbbell" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`}>
      <line x1={6} x2={WIDTH - 6} y1={HEIGHT / 2} y2={HEIGHT / 2} stroke="var(--line)" />
      {before !== null && after !== null && <line x1={at(before)} x2={at(after)} y1={HEIGHT / 2} y2={HEIGHT / 2} stroke={color} strokeWidth={2} />}
      {before !== null && <circle cx={at(before)} cy={HEIGHT / 2} r={4} fill="var(--surface)" stroke="var(--ink-faint)" strokeWidth={1.5} />}
      {after !== null && <circle cx={at(after)} cy={HEIGHT / 2} r={4} fill={color} />}
    </svg>
  );
}

/** How many values are better, from 1; equal values have the same rank. */
const ranks = (values: readonly (number | null)[]): (number | null)[] =>
  values.map((value) => (value === null ? null : 1 + values.filter((other) => other !== null && other > value + 1e-9).length));

const rankText = (before: number | null, after: number | null): string =>
  before === after ? String(before ?? "–") : `${before ?? "–"} → ${after ?? "–"}`;
