// The transcript of a rollout; only visible rows are rendered.
import { group } from "d3-array";
import { type Ref, type RefObject, useEffect, useImperativeHandle, useMemo, useRef, useState } from "react";
import { VirtualRows, type VirtualRowsHandle } from "../../parts/virtual-rows";
import { Link, useRoute } from "../../router";
import type { RolloutResponse } from "../../source/schema";
import { FindBar } from "./find-bar";
import { RolloutEnd } from "./rollout-end";
import { StepHeader } from "./step-header";
import type { TranscriptEvent } from "./transcript-events";
import { findAll, foldsOf, type Found, rowOf } from "./transcript-find";
import { TranscriptRow } from "./transcript-row";
import { type Row, rowHeight, RowMaker } from "./transcript-rows";
import { useFolds } from "./use-folds";
import { toView, viewState } from "./view-state";

export interface TranscriptHandle {
  /** Unfold all texts of the chosen step, or fold them where all are unfolded. */
  toggleStep: () => void;
  toggleAll: () => void;
  showEnd: () => void;
  find: () => void;
}

interface TranscriptProperties {
  run: string;
  answer: RolloutResponse;
  events: readonly TranscriptEvent[];
  handle: Ref<TranscriptHandle>;
}

export function Transcript({ run, answer, events, handle }: TranscriptProperties) {
  const { rollout } = answer;
  const route = useRoute();
  const { step: chosen, find } = viewState(route);
  const { opened, toggle, open, toggleAll } = useFolds();
  const [wanted, setWanted] = useState<Found | null>(null);
  const list = useRef<VirtualRowsHandle>(null);
  const field = useRef<HTMLInputElement>(null);
  const clicked = useRef<number | null>(null);
  const maker = useMemo(() => new RowMaker(rollout, events), [rollout, events]);
  const rows = useMemo(() => maker.rows(opened), [maker, opened]);
  const found = useMemo(() => findAll(find === "" ? [] : maker.unfolded(), find), [maker, find]);
  const calls = useMemo(() => group(rollout.calls, (call) => call.step), [rollout]);

  useEffect(() => {
    // A step that was clicked on here is in sight already, and must not jump away from under the pointer.
    const seen = clicked.current === chosen;
    clicked.current = null;
    const place = chosen === null || seen ? -1 : rows.findIndex((row) => row.kind === "step" && row.step === chosen);
    if (place >= 0) list.current?.show(place);
  }, [chosen]);
  useEffect(() => {
    if (wanted === null) return;
    const place = rowOf(rows, wanted);
    if (place < 0) open(wanted.fold);
    else list.current?.show(place, "center");
  }, [wanted, rows, open]);
  useReadingKeys(list, rows.length);
  useImperativeHandle(handle, () => ({
    toggleStep: () => toggleAll(rows, (row) => (chosen === null ? row.step === null || row.step === rollout.steps[0]?.step : row.step === chosen)),
    toggleAll: () => toggleAll(rows, () => true),
    showEnd: () => list.current?.show(rows.length - 1),
    find: () => field.current?.select(),
  }));

  const step = (row: Extract<Row, { kind: "step" }>) => (
    <StepHeader
      taken={row.taken}
      versionChanged={row.versionChanged}
      selected={row.step === chosen}
      to={toView(route, { step: row.step })}
      toCalls={toView(route, { step: row.step, tab: "calls" })}
      calls={calls.get(row.step) ?? []}
      onSelect={() => (clicked.current = row.step)}
    />
  );
  const folds = foldsOf(rows, () => true);
  return (
    <section className="transcript card">
      <header>
        <h2>Transcript</h2>
        <FindBar field={field} found={found} show={setWanted} />
        {folds.length > 0 && (
          <button type="button" className="button quiet" onClick={() => toggleAll(rows, () => true)} title="Shift and o">
            {folds.some((one) => !one.open) ? "Unfold all" : "Fold all"}
          </button>
        )}
        <WideLink />
      </header>
      <VirtualRows rows={rows} keyOf={(row) => row.key} estimate={rowHeight} label="Transcript" className="transcript-rows" handle={list}>
        {(row) => <TranscriptRow run={run} row={row} toggle={toggle} find={find} step={step} end={() => <RolloutEnd answer={answer} />} />}
      </VirtualRows>
    </section>
  );
}

const HEIGHTS: Record<string, number> = { PageDown: 0.9, PageUp: -0.9, ArrowDown: 0.08, ArrowUp: -0.08 };

function useReadingKeys(list: RefObject<VirtualRowsHandle | null>, rows: number): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const page = document.documentElement;
      if (event.target !== document.body || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || page.scrollHeight > page.clientHeight + 1) return;
      const heights = event.key === " " ? (event.shiftKey ? -0.9 : 0.9) : HEIGHTS[event.key];
      if (heights !== undefined) list.current?.scroll(heights);
      else if (event.key === "Home") list.current?.show(0);
      else if (event.key === "End") list.current?.show(rows - 1);
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [list, rows]);
}

function WideLink() {
  const route = useRoute();
  const { wide } = viewState(route);
  const label = wide ? "Make the details narrow" : "Make the details wide";
  return (
    <Link className="button quiet rollout-wide" to={toView(route, { wide: wide ? null : "1" })} aria-label={label} title={`${label} (w)`}>
      <svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" strokeWidth="1.4" aria-hidden="true">
        <rect x="1.5" y="2.5" width="13" height="11" rx="2" />
        <path d={wide ? "M6 2.5v11" : "M10 2.5v11"} />
      </svg>
    </Link>
  );
}
