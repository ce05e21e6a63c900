// Keeps the visible rows in place while rows are added before them.
import { useEffect, useRef, useState } from "react";
import type { Parameters } from "../../source/source";
import type { NeighboursResponse } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";

interface Anchor {
  id: string;
  /** Where it was when it was last seen. */
  index: number;
}

interface Anchored {
  run: string;
  listingParameters: Parameters;
  /** The row to hold on to: null at the top of the listing, where new rows may come in, and undefined while that is not known. */
  row: Anchor | null | undefined;
  /** Whether the rows that are shown are those of the run as it stands. */
  fresh: boolean;
  /** Moves what is shown by so many rows. */
  shift: (rows: number) => void;
}

/** Asks the server for the row's position; when the run has grown, scrolls by the difference. */
export function useAnchor({ run, listingParameters, row, fresh, shift }: Anchored): void {
  const held = useRef<(Anchor & { listingParameters: string }) | null>(null);
  const key = JSON.stringify({ ...listingParameters, since: null });
  // That other rows come into its place is what it is held against: it is let go only by scrolling to another.
  if (row === null || held.current?.listingParameters !== key) held.current = null;
  if (row != null && fresh && held.current?.index !== row.index) held.current = { ...row, listingParameters: key };
  const id = held.current?.id ?? null;
  const { data, isFetching } = useAnswer<NeighboursResponse>("neighbours", { run, id, ...listingParameters }, { enabled: id !== null, keep: false });
  // What was answered before the run grew would move it back.
  const position = isFetching ? null : (data?.position ?? null);
  useEffect(() => {
    const anchor = held.current;
    if (anchor === null || position === null || anchor.id !== id || position === anchor.index) return;
    const rows = position - anchor.index;
    held.current = { ...anchor, index: position };
    shift(rows);
  }, [position, id, shift]);
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
