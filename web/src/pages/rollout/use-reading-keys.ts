// The keys that scroll a page scroll the transcript, where the page itself has nothing to scroll and nothing has the focus.
import { useEffect, type RefObject } from "react";
import type { VirtualRowsHandle } from "../../parts/virtual-rows";

const HEIGHTS: Record<string, number> = { PageDown: 0.9, PageUp: -0.9, ArrowDown: 0.08, ArrowUp: -0.08 };

export function useReadingKeys(list: RefObject<VirtualRowsHandle | null>, rows: number): void {
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
