// The table of rollouts; only visible rows are rendered.
import { encodeNames } from "../../column-names";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef } from "react";
import { finite } from "../../format";
import { plainText } from "../../parts/text";
import { useRowWindow } from "../../parts/use-row-window";
import { useMarks } from "../../source/findings";
import type { Parameters } from "../../source/source";
import type { Column, RunResponse } from "../../source/schema";
import { NEEDED, widthOf } from "./columns";
import { type Change, type Listing, selectionOf, encodeSort, listingParameters } from "./listing";
import { TableHead } from "./table-head";
import { TableRow } from "./table-row";
import { TableState } from "./table-state";
import { useAnchor, useStill } from "./use-anchor";
import { useRowKeys } from "./use-row-keys";
import { type Rows, useFirstPage, useRows } from "./use-rows";

const ROW = 34;
const HEAD = 41;
const PLACE = 60;
const WHILE_LOADING = 12;
const STANDS_STILL = 150;

interface TableProperties {
  run: RunResponse;
  columns: readonly Column[];
  listing: Listing;
  change: Change;
  /** Called with the number of rows, or with what went wrong. */
  onStatus: (rows: Pick<Rows, "total" | "error" | "awaited">) => void;
}

export function RolloutTable({ run, columns, listing, change, onStatus }: TableProperties) {
  const scroller = useRef<HTMLDivElement>(null);
  const question = useMemo(() => questionOf(run.key, listing, columns), [run.key, listing, columns]);
  const first = useFirstPage(question);
  const shown = useRowWindow(scroller, first.data?.total ?? (first.error === null ? WHILE_LOADING : 0), ROW, HEAD);
  const rows = useRows(question, first, shown.top, shown.bottom);
  const { total, error, awaited } = rows;
  useEffect(() => onStatus({ total, error, awaited }), [onStatus, total, error, awaited]);
  useTopOf(scroller, listing);
  const { selected, select, shift: shiftSelected } = useRowKeys({ scroller, listing, total, reveal: shown.reveal, change });
  const parameters = useMemo(() => listingParameters(listing), [listing]);
  const { shift: shiftRows } = shown;
  const shift = useCallback(
    (by: number) => {
      shiftRows(by);
      shiftSelected(by);
    },
    [shiftRows, shiftSelected],
  );
  const held = useStill(selected !== null && selected >= shown.top && selected < shown.bottom ? selected : shown.top, STANDS_STILL);
  const row = held === null ? undefined : held === 0 && selected === null ? null : rows.anchorAt(held);
  useAnchor({ run: run.key, listingParameters: parameters, row, fresh: rows.fresh, shift });
  const measures = useMemo(() => new Set(run.measures.map((measure) => measure.name)), [run.measures]);
  const reach = useMemo(() => reachOf(run), [run]);
  const marks = useMarks(run.key);
  return (
    <div className="rollouts-scroll" ref={scroller} data-old={rows.old ? "" : undefined} tabIndex={-1}>
      <table className="rollouts-table" aria-rowcount={(total ?? -2) + 1} aria-busy={awaited} style={{ width: columns.reduce((sum, column) => sum + widthOf(column), PLACE) }}>
        <caption className="only-heard">Rollouts of {plainText(run.name)}</caption>
        <colgroup>
          <col style={{ width: PLACE }} />
          {columns.map((column) => (
            <col key={column.name} style={{ width: widthOf(column) }} />
          ))}
        </colgroup>
        <TableHead run={run.key} columns={columns} listing={listing} measures={measures} change={change} />
        <tbody>
          <Spacer height={shown.before} />
          {range(shown.first, shown.last).map((index) => (
            <TableRow
              key={index}
              run={run.key}
              index={index}
              row={rows.at(index)}
              marks={marks.ofRollout(rows.at(index)?.id ?? "")}
              columns={columns}
              listingParameters={parameters}
              reach={reach}
              selected={index === selected}
              reachable={index === (selected ?? shown.top)}
              select={select}
            />
          ))}
          <Spacer height={shown.after} />
        </tbody>
      </table>
      <TableState rows={rows} listing={listing} change={change} />
    </div>
  );
}

function Spacer({ height }: { height: number }) {
  return height > 0 ? (
    <tr aria-hidden="true" className="rollouts-spacer">
      <td style={{ height }} />
    </tr>
  ) : null;
}

/** Another selection or order starts at its top, unless its address names a row. */
function useTopOf(scroller: React.RefObject<HTMLElement | null>, listing: Listing): void {
  const asked = JSON.stringify({ ...listingParameters(listing), since: null });
  const before = useRef(asked);
  useLayoutEffect(() => {
    if (before.current === asked) return;
    before.current = asked;
    scroller.current?.scrollTo({ top: 0 });
  }, [asked, scroller]);
}

function questionOf(run: string, listing: Listing, columns: readonly Column[]): Parameters {
  const names = new Set([...columns.map((column) => column.name), ...NEEDED]);
  return { run, ...selectionOf(listing), sort: encodeSort(listing.sort), columns: encodeNames([...names]) };
}

function reachOf({ rewards }: RunResponse): readonly [number, number] | null {
  const [min, max] = [finite(rewards.min), finite(rewards.max)];
  if (min === null || max === null || min === max) return null;
  return [Math.min(0, min), Math.max(0, max)];
}

const range = (from: number, to: number): number[] => Array.from({ length: Math.max(0, to - from) }, (_, place) => from + place);
