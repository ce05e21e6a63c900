// The rows of a result; only visible rows are rendered, and long values are folded.
import { useMemo, useRef, useState } from "react";
import { toRollout } from "../../addresses";
import { count } from "../../format";
import { Name, plainText, LongText, VisibleText, truncated } from "../../parts/text";
import { useRowWindow } from "../../parts/use-row-window";
import { Link } from "../../router";
import type { Json, SqlResponse } from "../../source/schema";

const ROW = 30;
const HEAD = 46;
const PLACE = 56;
const LONGEST = 120;
const NUMERIC = /^(BIGINT|INTEGER|SMALLINT|TINYINT|HUGEINT|U?[A-Z]*INT[0-9]*|DOUBLE|FLOAT|REAL|DECIMAL.*)$/;
const IDENTIFIER = /^[0-9a-f]{32}$/;

interface Opened {
  column: string;
  text: string;
}

export function ResultTable({ run, answer }: { run: string; answer: SqlResponse }) {
  const scroller = useRef<HTMLDivElement>(null);
  const sheet = useRef<HTMLDialogElement>(null);
  const [opened, setOpened] = useState<Opened | null>(null);
  const { columns, rows } = answer;
  const shown = useRowWindow(scroller, rows.length, ROW, HEAD);
  const widths = useMemo(() => columns.map((_, place) => widthOf(answer, place)), [answer, columns]);
  const open = (column: string, text: string): void => {
    setOpened({ column, text });
    sheet.current?.showModal();
  };
  return (
    <>
      <div className="sql-scroll" ref={scroller} tabIndex={0} role="region" aria-label="Rows">
        <table className="sql-table" aria-rowcount={rows.length + 1} style={{ width: widths.reduce((sum, width) => sum + width, PLACE) }}>
          <colgroup>
            <col style={{ width: PLACE }} />
            {widths.map((width, place) => (
              <col key={place} style={{ width }} />
            ))}
          </colgroup>
          <thead>
            <tr aria-rowindex={1}>
              <th scope="col" className="sql-place">
                #
              </th>
              {columns.map((column, place) => (
                <th key={place} scope="col" className={isNumeric(column.type) ? "numeric" : undefined}>
                  <Name text={column.name} most={LONGEST} />
                  <span className="mono faint" title={plainText(column.type, 400)}>
                    {plainText(column.type)}
                  </span>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.before > 0 && (
              <tr aria-hidden="true">
                <td style={{ height: shown.before, padding: 0 }} />
              </tr>
            )}
            {rows.slice(shown.first, shown.last).map((row, place) => (
              <tr key={shown.first + place} aria-rowindex={shown.first + place + 2}>
                <td className="sql-place">{count(shown.first + place + 1)}</td>
                {columns.map((column, at) => (
                  <td key={at} className={isNumeric(column.type) ? "numeric number" : undefined}>
                    <Value run={run} column={column.name} value={row[at] ?? null} open={open} />
                  </td>
                ))}
              </tr>
            ))}
            {shown.after > 0 && (
              <tr aria-hidden="true">
                <td style={{ height: shown.after, padding: 0 }} />
              </tr>
            )}
          </tbody>
        </table>
        {rows.length === 0 && <p className="sql-none soft">No rows.</p>}
      </div>
      <dialog className="sheet sql-sheet" ref={sheet} aria-label="The whole value" onClose={() => setOpened(null)}>
        <header>
          <h2>
            <Name text={opened?.column ?? ""} />
          </h2>
          <button type="button" className="button quiet" onClick={() => sheet.current?.close()} aria-label="Close">
            ✕
          </button>
        </header>
        {opened !== null && (
          <div className="sql-whole mono">
            <LongText text={opened.text} label="value" />
          </div>
        )}
      </dialog>
    </>
  );
}

function Value({ run, column, value, open }: { run: string; column: string; value: Json; open: (column: string, text: string) => void }) {
  if (value === null) return <span className="faint">null</span>;
  if (typeof value === "number" || typeof value === "boolean") return <>{String(value)}</>;
  if (typeof value === "string" && (column === "id" || column === "rollout") && IDENTIFIER.test(value))
    return (
      <Link to={toRollout(run, value)} className="mono">
        {value}
      </Link>
    );
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const shown = (
    <bdi className={typeof value === "string" ? undefined : "mono"}>
      <VisibleText text={truncated(text, LONGEST).replace(/\s+/g, " ")} />
    </bdi>
  );
  if (text.length <= 32 && !text.includes("\n")) return shown;
  return (
    <button type="button" className="sql-fold" title="Show the whole value" onClick={() => open(column, typeof value === "string" ? value : JSON.stringify(value, null, 2))}>
      {shown}
    </button>
  );
}

const isNumeric = (type: string): boolean => NUMERIC.test(type);

/** As wide as its first values want, within bounds. */
function widthOf({ columns, rows }: SqlResponse, place: number): number {
  const column = columns[place];
  const letters = rows.slice(0, 50).map((row) => lettersOf(row[place] ?? null));
  const longest = Math.max(column?.name.length ?? 0, Math.min(12, column?.type.length ?? 0), ...letters);
  return Math.max(72, Math.min(420, longest * 8.6 + 28));
}

function lettersOf(value: Json): number {
  return (typeof value === "string" ? value : JSON.stringify(value)).length;
}
