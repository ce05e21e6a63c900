// Keeps the visible rows in place while rows are added before them.
import { useEffect, useRef, useState } from "react";
import type { Parameters } from "../../source/source";
import type { NeighboursResponse } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";

export interface Anchor {
  id: string;
  /** Where it was when it was last seen. */
  index: number;
  /** How many rows the listing had then, which tells the states of a growing run apart. */
  total: number;
}

interface Anchored {
  run: string;
  listingParameters: Parameters;
  /** The row to hold on to: null at the top of the listing, where new rows may come in, and undefined while that is not known. */
  row: Anchor | null | undefined;
  /** Whether the rows are those of the current state of the run. */
  fresh: boolean;
  /** Scrolls by this many rows. */
  shift: (rows: number) => void;
}

/** Asks the server for the row's position; when the run has grown, scrolls by the difference. */
export function useAnchor({ run, listingParameters, row, fresh, shift }: Anchored): void {
  const held = useRef<(Anchor & { listingParameters: string }) | null>(null);
  const key = JSON.stringify({ ...listingParameters, since: null });
  if (row === null || held.current?.listingParameters !== key) held.current = null;
  // Another row is held only after scrolling, and only if it comes from the same state of the listing: if the run has grown
  // between the rows and the position of the held one, the difference would be scrolled twice, or not at all.
  if (row != null && fresh && (held.current === null || (held.current.index !== row.index && held.current.total === row.total)))
    held.current = { ...row, listingParameters: key };
  const id = held.current?.id ?? null;
  const { data, isFetching } = useAnswer<NeighboursResponse>("neighbours", { run, id, ...listingParameters }, { enabled: id !== null, keep: false });
  // What was answered before the run grew would move it back.
  const answer = isFetching ? undefined : data;
  useEffect(() => {
    const anchor = held.current;
    if (anchor === null || answer === undefined || anchor.id !== id) return;
    if (answer.position === null) {
      held.current = null;
      return;
    }
    held.current = { ...anchor, index: answer.position, total: answer.total };
    if (answer.position !== anchor.index) shift(answer.position - anchor.index);
  }, [answer, id, shift]);
}

/** A value once it has stood still for some milliseconds; null until then. */
export function useStill(value: number, after: number): number | null {
  const [still, setStill] = useState<number | null>(null);
  useEffect(() => {
    const timer = window.setTimeout(() => setStill(value), after);
    return () => window.clearTimeout(timer);
  }, [value, after]);
  return still === value ? value : null;
}
