// All numbers of all members as one table.
import { useEffect, useRef } from "react";
import { toRollout } from "../../addresses";
import { count, finite, number, seconds, signed } from "../../format";
import { StopReasonBadge } from "../../parts/badge";
import { VisibleText } from "../../parts/text";
import { Link } from "../../router";
import type { Member } from "../../source/schema";
import type { GroupState } from "./group-state";
import { nameOf, type Row, rowsOf, termRows } from "./numbers";

interface MembersTableProperties {
  run: string;
  members: readonly Member[];
  /** Metrics of the members, by name. */
  metrics: readonly Row[];
  state: GroupState;
}

interface Section {
  name: string;
  rows: readonly Row[];
  written?: (value: Row["values"][number], row: Row) => string;
}

export function MembersTable({ run, members, metrics, state }: MembersTableProperties) {
  const chosen = useRef<HTMLTableRowElement>(null);
  useEffect(() => {
    if (state.named) void chosen.current?.scrollIntoView({ block: "nearest" });
  }, [state.named, state.selected?.id]);
  const sections = sectionsOf(members, metrics);
  return (
    <div className="group-table" role="region" aria-label="All numbers of all members" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col" rowSpan={2} className="group-corner">
              Member
            </th>
            {sections.map((section) => (
              <th key={section.name} scope="colgroup" colSpan={section.rows.length}>
                {section.name}
              </th>
            ))}
            <th scope="col" rowSpan={2}>
              Stop reason
            </th>
          </tr>
          <tr>
            {sections.flatMap((section) =>
              section.rows.map((row) => (
                <th key={`${section.name} ${row.name}`} scope="col" className="number">
                  <bdi>
                    <VisibleText text={row.name.slice(0, 60)} />
                  </bdi>
                </th>
              )),
            )}
          </tr>
        </thead>
        <tbody>
          {members.map((member, place) => (
            <tr key={member.id} ref={member === state.selected ? chosen : null} {...(member === state.selected ? { "aria-current": "true" as const } : {})}>
              <th scope="row">
                <Link to={toRollout(run, member.id)}>{nameOf(member)}</Link>
              </th>
              {sections.flatMap((section) =>
                section.rows.map((row) => (
                  <td key={`${section.name} ${row.name}`} className={row.differs ? "number" : "number faint"} style={heat(row, place)}>
                    {(section.written ?? plainly)(row.values[place], row)}
                  </td>
                )),
              )}
              <td>
                <StopReasonBadge reason={member.stop_reason} status={member.status} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function sectionsOf(members: readonly Member[], metrics: readonly Row[]): Section[] {
  const own: Section[] = [
    { name: "Reward", rows: rowsOf(members, (member) => ({ reward: member.reward, advantage: member.advantage })), written: (value, row) => (row.name === "advantage" ? signed(value) : number(value)) },
    { name: "Sum of", rows: termRows(members) },
    { name: "Reward data", rows: rowsOf(members, (member) => member.reward_data) },
    { name: "Later scores", rows: rowsOf(members, (member) => member.scores) },
    { name: "Metrics", rows: metrics },
    {
      name: "Size",
      rows: rowsOf(members, (member) => ({ steps: member.steps, "prompt tokens": member.prompt_tokens, "completion tokens": member.completion_tokens, seconds: member.seconds })),
      written: (value, row) => (row.name === "seconds" ? seconds(value) : count(finite(value))),
    },
  ];
  return own.filter((section) => section.rows.length > 0);
}

const plainly = (value: Row["values"][number]): string => number(value);

/** A wash from the least to the greatest of a row; the number says it, the wash only lets the eye find it. */
function heat(row: Row, place: number): React.CSSProperties | undefined {
  const value = finite(row.values[place]);
  if (!row.differs || value === null || row.extent === null) return undefined;
  const [low, high] = row.extent;
  if (low === high) return undefined;
  const strength = Math.round(24 * ((value - low) / (high - low)));
  return { background: `color-mix(in srgb, var(--accent) ${strength}%, transparent)` };
}
