// A scrolling list of any length; only visible rows are rendered, each at its own height.
import { useVirtualizer } from "@tanstack/react-virtual";
import { useImperativeHandle, useRef, type ReactNode, type Ref } from "react";

export interface VirtualRowsHandle {
  /** Bring a row into sight. */
  show: (index: number, align?: "start" | "center" | "auto") => void;
  /** Scroll by so many times its height. */
  scroll: (heights: number) => void;
}

interface VirtualRowsProperties<Row> {
  rows: readonly Row[];
  keyOf: (row: Row, index: number) => string | number;
  /** About how high a row will be, before it is seen. */
  estimate: (row: Row) => number;
  children: (row: Row, index: number) => ReactNode;
  /** The accessible name. */
  label: string;
  className?: string;
  handle?: Ref<VirtualRowsHandle>;
}

export function VirtualRows<Row>({ rows, keyOf, estimate, children, label, className = "", handle }: VirtualRowsProperties<Row>) {
  const box = useRef<HTMLDivElement>(null);
  const at = (index: number): Row => rows[index] as Row;
  const virtualizer = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: (index) => estimate(at(index)),
    getItemKey: (index) => keyOf(at(index), index),
    overscan: 5,
  });
  useImperativeHandle(
    handle,
    () => ({
      show: (index, align = "start") => virtualizer.scrollToIndex(index, { align }),
      scroll: (heights) => box.current?.scrollBy({ top: heights * box.current.clientHeight }),
    }),
    [virtualizer],
  );
  const items = virtualizer.getVirtualItems();
  return (
    <div className={`virtual-rows ${className}`} ref={box} role="region" aria-label={label} tabIndex={0}>
      <div style={{ height: virtualizer.getTotalSize(), position: "relative" }}>
        <div style={{ position: "absolute", insetInline: 0, top: 0, transform: `translateY(${items[0]?.start ?? 0}px)` }}>
          {items.map((item) => (
            <div key={item.key} data-index={item.index} ref={virtualizer.measureElement} style={{ display: "flow-root" }}>
              {children(at(item.index), item.index)}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}
