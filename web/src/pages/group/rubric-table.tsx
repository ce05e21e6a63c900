// The rubric grid: criteria by members, with the grader's scores and comments.
import { useState } from "react";
import { finite, number, plural } from "../../format";
import { LongText, VisibleText } from "../../parts/text";
import { go, Link } from "../../router";
import type { Member, RubricGrid } from "../../source/schema";
import type { GroupState } from "./group-state";
import { nameOf } from "./numbers";

/** The limit for the columns of the grid. */
const MOST = 64;

interface RubricTableProperties {
  rubric: RubricGrid;
  members: readonly Member[];
  state: GroupState;
}

export function RubricTable({ rubric, members, state }: RubricTableProperties) {
  const [pointed, setPointed] = useState<[number, number] | null>(null);
  const byId = new Map(members.map((member) => [member.id, member]));
  const columns = rubric.ids.slice(0, MOST).map((id) => byId.get(id));
  return (
    <section className="card group-rubric" aria-label="Rubric">
      <header>
        <h2>Rubric</h2>
        <span className="small soft">
          {plural(rubric.criteria.length, "criterion", "criteria")}, from 0 (not met) to 1{rubric.ids.length > MOST && `; the ${MOST} best of ${rubric.ids.length} members`}
        </span>
      </header>
      <div className="group-rubric-body">
        <div className="group-scroll" role="region" aria-label="Criteria by members" tabIndex={0} onMouseLeave={() => setPointed(null)}>
          <table>
            <thead>
              <tr>
                <th scope="col">Criterion</th>
                <th scope="col" className="number">
                  Weight
                </th>
                {columns.map((member, place) => (
                  <th key={place} scope="col" className="number" {...(member !== undefined && member === state.selected ? { "aria-current": "true" as const } : {})}>
                    {member === undefined ? "–" : <Link to={state.to({ member: member.id })}>{nameOf(member)}</Link>}
                  </th>
                ))}
              </tr>
            </thead>
            {rubric.criteria.map((criterion, row) => {
              const open = state.criterion === criterion.name;
              return (
                <tbody key={row}>
                  <tr>
                    <th scope="row">
                      <button type="button" className="group-criterion" aria-expanded={open} onClick={() => go(state.to({ criterion: open ? null : criterion.name }))}>
                        <span aria-hidden="true">{open ? "▾" : "▸"}</span>
                        <span>
                          <bdi>
                            <VisibleText text={criterion.name.slice(0, 120)} />
                          </bdi>
                          {criterion.text !== null && !open && (
                            <span className="group-criterion-text">
                              <bdi>
                                <VisibleText text={criterion.text.slice(0, 160)} />
                              </bdi>
                            </span>
                          )}
                        </span>
                      </button>
                    </th>
                    <td className="number soft">{number(criterion.weight)}</td>
                    {columns.map((member, column) => {
                      const cell = rubric.cells[row]?.[column];
                      const value = cell?.value ?? null;
                      return (
                        <td key={column} className="group-cell" style={{ background: wash(finite(value)) }} onMouseEnter={() => setPointed([row, column])}>
                          <button
                            type="button"
                            className="number"
                            onFocus={() => setPointed([row, column])}
                            onClick={() => go(state.to({ criterion: criterion.name }))}
                            aria-label={`${criterion.name.slice(0, 120)}, ${member === undefined ? "unknown member" : nameOf(member)}: ${value === null ? "no score" : number(value, 2)}. Show the grader's words`}
                          >
                            {number(value, 2)}
                          </button>
                        </td>
                      );
                    })}
                  </tr>
                  {open && (
                    <tr>
                      <td colSpan={columns.length + 2} className="group-words">
                        {criterion.text !== null && <p className="long-text soft">{criterion.text.slice(0, 2_000)}</p>}
                        <Words rubric={rubric} row={row} columns={columns} />
                      </td>
                    </tr>
                  )}
                </tbody>
              );
            })}
          </table>
        </div>
        <HoveredIteration rubric={rubric} columns={columns} at={pointed} />
      </div>
    </section>
  );
}

/** The grader's comments about one criterion. */
function Words({ rubric, row, columns }: { rubric: RubricGrid; row: number; columns: readonly (Member | undefined)[] }) {
  return (
    <dl>
      {columns.map((member, column) => {
        const cell = rubric.cells[row]?.[column];
        return (
          <div key={column}>
            <dt className="number">
              {member === undefined ? "–" : nameOf(member)} <strong>{number(cell?.value ?? null, 2)}</strong>
            </dt>
            <dd>{cell?.words ? <LongText text={cell.words} fold={400} label="grader's words" /> : <span className="faint">no words recorded</span>}</dd>
          </div>
        );
      })}
    </dl>
  );
}

/** The grader's comment on the hovered cell; it has its own place so that it does not cover the grid. */
function HoveredIteration({ rubric, columns, at }: { rubric: RubricGrid; columns: readonly (Member | undefined)[]; at: [number, number] | null }) {
  if (at === null) return <p className="group-pointed small faint">Point at a cell, or move to it with the keyboard, to read the grader's comment.</p>;
  const [row, column] = at;
  const cell = rubric.cells[row]?.[column];
  const member = columns[column];
  return (
    <p className="group-pointed small">
      <strong>
        <bdi>
          <VisibleText text={(rubric.criteria[row]?.name ?? "").slice(0, 80)} />
        </bdi>
        , {member === undefined ? "–" : nameOf(member)}: {number(cell?.value ?? null, 2)}
      </strong>{" "}
      <bdi>{cell?.words ? <VisibleText text={cell.words.slice(0, 600)} /> : <span className="faint">no words recorded</span>}</bdi>
    </p>
  );
}

const wash = (value: number | null): string =>
  value === null ? "transparent" : `color-mix(in srgb, var(--accent) ${Math.round(34 * Math.max(0, Math.min(1, value)))}%, transparent)`;
