// The rows that a scrolling table has to render, for any number of rows of equal height.
import { useCallback, useEffect, useLayoutEffect, useState, type RefObject } from "react";

/** Browsers clip what is taller: Firefox at some 17 million pixels, Chromium at 33. Beyond this, scrolling is scaled. */
export const TALLEST = 16_000_000;
const OVERSCAN = 8;

interface Geometry {
  rows: number;
  rowHeight: number;
  /** How much of the scrolled area rows can be seen in, below the head. */
  view: number;
}

interface RowWindow {
  /** Rows to render: from `first`, without `last`. */
  first: number;
  last: number;
  /** Pixels before and after them. */
  before: number;
  after: number;
  /** Rows that can be seen: from `top`, without `bottom`. */
  top: number;
  bottom: number;
}

/** Scrolls, where it must, so that a row is seen with some rows around it. */
export type Reveal = (row: number, around?: number) => void;

/** The window at a place of the scroll bar. */
function windowAt(scroll: number, { rows, rowHeight, view }: Geometry): RowWindow {
  const natural = rows * rowHeight;
  const physical = Math.min(natural, TALLEST);
  const offset = Math.min(scroll * scale(rows, rowHeight, view), Math.max(0, natural - view));
  const top = Math.max(0, Math.floor(offset / rowHeight));
  const bottom = Math.min(rows, Math.ceil((offset + view) / rowHeight));
  const first = Math.max(0, top - OVERSCAN);
  const last = Math.min(rows, bottom + OVERSCAN);
  const before = Math.max(0, first * rowHeight - offset + Math.min(scroll, Math.max(0, physical - view)));
  return { first, last, before, after: Math.max(0, physical - before - (last - first) * rowHeight), top, bottom };
}

/** Where to scroll so that a row is seen whole, with some rows around it; null where it is. */
function scrollFor(row: number, scroll: number, { rows, rowHeight, view }: Geometry, around = 0): number | null {
  const factor = scale(rows, rowHeight, view);
  const offset = scroll * factor;
  const room = Math.min(around * rowHeight, Math.max(0, (view - rowHeight) / 2));
  const above = Math.max(0, row * rowHeight - room);
  const below = Math.min(rows * rowHeight, (row + 1) * rowHeight + room);
  if (above < offset) return above / factor;
  if (below > offset + view) return (below - view) / factor;
  return null;
}

function scale(rows: number, rowHeight: number, view: number): number {
  const natural = rows * rowHeight;
  return natural <= TALLEST ? 1 : (natural - view) / (TALLEST - view);
}

/** Follows an element that scrolls, whose first `head` pixels stick to its top. */
export function useRowWindow(scroller: RefObject<HTMLElement | null>, rows: number, rowHeight: number, head: number): RowWindow & { reveal: Reveal; shift: (rows: number) => void } {
  const [shown, setShown] = useState({ scroll: 0, view: 600 });
  const look = useCallback(() => {
    const element = scroller.current;
    if (element === null) return;
    const now = { scroll: element.scrollTop, view: Math.max(0, element.clientHeight - head) };
    setShown((before) => (before.scroll === now.scroll && before.view === now.view ? before : now));
  }, [scroller, head]);
  useLayoutEffect(look, [look, rows]);
  useEffect(() => {
    const element = scroller.current;
    if (element === null) return;
    element.addEventListener("scroll", look, { passive: true });
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", look);
      observer.disconnect();
    };
  }, [scroller, look]);
  const reveal = useCallback<Reveal>(
    (row, around = 1) => {
      const element = scroller.current;
      if (element === null) return;
      const geometry = { rows, rowHeight, view: Math.max(0, element.clientHeight - head) };
      const to = scrollFor(row, element.scrollTop, geometry, around);
      if (to !== null) element.scrollTop = to;
    },
    [scroller, rows, rowHeight, head],
  );
  const shift = useCallback(
    (by: number) => {
      const element = scroller.current;
      if (element === null) return;
      element.scrollTop += (by * rowHeight) / scale(rows, rowHeight, Math.max(0, element.clientHeight - head));
    },
    [scroller, rows, rowHeight, head],
  );
  return { ...windowAt(shown.scroll, { rows, rowHeight, view: shown.view }), reveal, shift };
}
