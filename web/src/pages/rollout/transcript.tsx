// The transcript: what was said, in order, with only what is in sight drawn.
import { group } from "d3-array";
import { useEffect, useImperativeHandle, useMemo, useRef, useState, type Ref } from "react";
import { VirtualRows, type VirtualRowsHandle } from "../../parts/virtual-rows";
import { useRoute } from "../../router";
import type { RolloutResponse } from "../../source/schema";
import { FindBar } from "./find-bar";
import { RolloutEnd } from "./rollout-end";
import { StepHeader } from "./step-header";
import type { Event } from "./storyline";
import { findAll, foldsOf, rowOf, type Found } from "./transcript-find";
import { TranscriptRow } from "./transcript-row";
import { RowMaker, rowHeight, type Row } from "./transcript-rows";
import { useFolds } from "./use-folds";
import { useReadingKeys } from "./use-reading-keys";
import { WideLink } from "./wide-link";
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
  events: readonly Event[];
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
