// The preference matrix: members by members, in the order of their rewards.
import { finite, number, signed } from "../../format";
import { VisibleText } from "../../parts/text";
import { Link } from "../../router";
import type { Float, Member, PreferenceMatrix } from "../../source/schema";
import type { GroupState } from "./group-state";
import { nameOf } from "./numbers";

const MOST = 64;

interface PreferenceTableProperties {
  matrix: PreferenceMatrix;
  members: readonly Member[];
  state: GroupState;
}

export function PreferenceTable({ matrix, members, state }: PreferenceTableProperties) {
  const byId = new Map(members.map((member) => [member.id, member]));
  const shown = matrix.ids.slice(0, MOST).map((id, place) => ({ member: byId.get(id ?? ""), index: matrix.indexes[place] ?? null }));
  return (
    <section className="card group-preferences" aria-label="Preferences">
      <header>
        <h2>Preferences</h2>
        <span className="small soft">
          The row was shown first, the column second: <b>W</b> the row was preferred, <b>L</b> the column, <b>=</b> a tie, <b>·</b> not judged
          {disagrees(matrix) && (
            <>
              , <span className="group-split">underlined</span> the two orders disagree
            </>
          )}
          {matrix.ids.length > MOST && `; the ${MOST} best of ${matrix.ids.length}`}
        </span>
      </header>
      <div className="group-scroll" role="region" aria-label="Members by members" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">
                <span className="only-heard">Shown first</span>
              </th>
              {shown.map((one, place) => (
                <th key={place} scope="col">
                  <Name {...one} state={state} />
                </th>
              ))}
              <th scope="col" className="group-sum" title="Over both orders">
                Won
              </th>
              <th scope="col">Lost</th>
              <th scope="col">Tied</th>
              <th scope="col" title="The sum of its row less the sum of its column">
                Net
              </th>
            </tr>
          </thead>
          <tbody>
            {shown.map((one, row) => {
              const sums = standing(matrix, row);
              return (
                <tr key={row} {...(one.member !== undefined && one.member === state.selected ? { "aria-current": "true" as const } : {})}>
                  <th scope="row">
                    <Name {...one} state={state} />
                  </th>
                  {shown.map((other, column) => (
                    <Cell key={column} row={row} column={column} matrix={matrix} words={`${called(one)} shown before ${called(other)}`} />
                  ))}
                  <td className="number group-sum">{sums.won}</td>
                  <td className="number">{sums.lost}</td>
                  <td className="number">{sums.tied}</td>
                  <td className="number">
                    <strong>{signed(sums.net)}</strong>
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {Object.keys(matrix.numbers).length > 0 && (
        <dl className="group-matrix-numbers small">
          {Object.entries(matrix.numbers).map(([name, value]) => (
            <div key={name}>
              <dt>
                <bdi>
                  <VisibleText text={name.slice(0, 60)} />
                </bdi>
              </dt>
              <dd className="number">{number(value)}</dd>
            </div>
          ))}
        </dl>
      )}
    </section>
  );
}

interface Place {
  member: Member | undefined;
  index: number | null;
}

const called = ({ member, index }: Place): string => (member !== undefined ? nameOf(member) : index === null ? "no member" : `#${index}`);

function Name({ member, index, state }: Place & { state: GroupState }) {
  return member === undefined ? <span className="faint">{called({ member, index })}</span> : <Link to={state.to({ member: member.id })}>{nameOf(member)}</Link>;
}

function Cell({ matrix, row, column, words }: { matrix: PreferenceMatrix; row: number; column: number; words: string }) {
  if (row === column) return <td className="group-diagonal" aria-label="itself" />;
  const value = matrix.cells[row]?.[column] ?? null;
  const split = isSplit(matrix, row, column);
  const verdict = verdictOf(value);
  return (
    <td className={`group-verdict ${verdict.tone} ${split ? "group-split" : ""}`} title={`${words}: ${verdict.words}${split ? "; the other way round the judge says the opposite" : ""}`}>
      <span aria-hidden="true">{verdict.mark}</span>
      <span className="only-heard">{verdict.words}</span>
    </td>
  );
}

/** Who was shown first was preferred, or passed over, both times: that says more about the judge than about the two. */
function isSplit(matrix: PreferenceMatrix, row: number, column: number): boolean {
  const there = finite(matrix.cells[row]?.[column] ?? null);
  const back = finite(matrix.cells[column]?.[row] ?? null);
  return row !== column && there !== null && back !== null && there * back > 0;
}

const disagrees = (matrix: PreferenceMatrix): boolean => matrix.cells.some((cells, row) => cells.some((_, column) => isSplit(matrix, row, column)));

function verdictOf(value: Float | null): { mark: string; words: string; tone: string } {
  if (value === null) return { mark: "·", words: "not judged", tone: "faint" };
  const preference = finite(value);
  if (preference === null) return { mark: "?", words: number(value), tone: "faint" };
  const degree = Math.abs(preference) === 1 || preference === 0 ? "" : ` ${number(Math.abs(preference), 2)}`;
  if (preference > 0) return { mark: `W${degree}`, words: `preferred${degree}`, tone: "group-won" };
  if (preference < 0) return { mark: `L${degree}`, words: `not preferred${degree}`, tone: "group-lost" };
  return { mark: "=", words: "a tie", tone: "" };
}

/** A member's totals over all its matchups, as first or second. */
function standing(matrix: PreferenceMatrix, place: number): { won: number; lost: number; tied: number; net: number } {
  const first = (matrix.cells[place] ?? []).filter((_, other) => other !== place).map((value) => finite(value));
  const second = matrix.cells.filter((_, other) => other !== place).map((row) => finite(row[place] ?? null));
  const verdicts = [...first, ...second.map((value) => (value === null ? null : -value))].filter((value) => value !== null);
  return {
    won: verdicts.filter((value) => value > 0).length,
    lost: verdicts.filter((value) => value < 0).length,
    tied: verdicts.filter((value) => value === 0).length,
    net: verdicts.reduce((sum, value) => sum + value, 0),
  };
}
