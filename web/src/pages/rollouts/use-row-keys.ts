// The selected row: moved by keys, kept in the address, opened by Enter.
import { useCallback, useEffect, useMemo, useRef, useState, type RefObject } from "react";
import type { Reveal } from "../../parts/use-row-window";
import { useShortcuts } from "../../shortcuts";
import { EVERYTHING, isNarrowed, type Change, type Listing } from "./listing";

/** Browsers refuse addresses that change too often, as they would while a key is held. */
const WRITTEN_AFTER = 300;

interface RowKeys {
  scroller: RefObject<HTMLElement | null>;
  listing: Listing;
  total: number | null;
  reveal: Reveal;
  change: Change;
}

interface Selected {
  selected: number | null;
  select: (index: number) => void;
  /** The same rollout is now so many rows further on. */
  shift: (rows: number) => void;
}

export function useRowKeys({ scroller, listing, total, reveal, change }: RowKeys): Selected {
  const [selected, setSelected] = useState(listing.row);
  const focus = useRef<number | null>(null);
  const { row } = listing;
  useEffect(() => setSelected(row), [row]);
  useEffect(() => {
    if (selected === row) return;
    const timer = window.setTimeout(() => change({ row: selected }, { replace: true }), WRITTEN_AFTER);
    return () => window.clearTimeout(timer);
  }, [selected, row, change]);
  useStartAt(row, total, reveal);
  // The link of a row that was scrolled to is there only some renders later.
  useEffect(() => {
    if (focus.current === null) return;
    const link = scroller.current?.querySelector<HTMLElement>(`a[data-row="${focus.current}"]`);
    if (link === null || link === undefined) return;
    focus.current = null;
    link.focus({ preventScroll: true });
  });
  const move = useCallback(
    (to: (from: number) => number) => {
      if (total === null || total === 0) return;
      const next = Math.max(0, Math.min(total - 1, to(selected ?? -1)));
      focus.current = next;
      setSelected(next);
      reveal(next);
    },
    [selected, total, reveal],
  );
  const select = useCallback(
    (index: number) => {
      setSelected(index);
      change({ row: index }, { replace: true });
    },
    [change],
  );
  const clear = useCallback(() => {
    const panel = document.querySelector<HTMLElement>(":popover-open");
    if (panel !== null) panel.hidePopover();
    else if (selected !== null) {
      setSelected(null);
      if (scroller.current?.contains(document.activeElement)) (document.activeElement as HTMLElement).blur();
    } else if (isNarrowed(listing)) change(EVERYTHING);
  }, [selected, listing, change, scroller]);
  const enter = useCallback(() => {
    if (selected !== null) scroller.current?.querySelector<HTMLElement>(`a[data-row="${selected}"]`)?.click();
  }, [selected, scroller]);
  useShortcuts(
    useMemo(
      () => [
        { keys: "j", does: "Next row", run: () => move((from) => from + 1) },
        { keys: "k", does: "Previous row", run: () => move((from) => from - 1) },
        { keys: "ArrowDown", does: "Next row", run: () => move((from) => from + 1) },
        { keys: "ArrowUp", does: "Previous row", run: () => move((from) => from - 1) },
        { keys: "Home", does: "First row", run: () => move(() => 0) },
        { keys: "End", does: "Last row", run: () => move(() => Infinity) },
        { keys: "Enter", does: "Open the selected rollout", run: enter },
        { keys: "Escape", does: "Clear the selected row, then the filters", run: clear },
      ],
      [move, enter, clear],
    ),
  );
  const shift = useCallback((rows: number) => setSelected((before) => (before === null ? null : Math.max(0, before + rows))), []);
  return { selected, select, shift };
}

/** Coming back to an address that names a row shows that row. */
function useStartAt(row: number | null, total: number | null, reveal: Reveal): void {
  const pending = useRef(row);
  useEffect(() => {
    if (pending.current === null || total === null) return;
    if (pending.current < total) reveal(pending.current, 4);
    pending.current = null;
  }, [total, reveal]);
}
