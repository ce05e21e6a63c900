// All members side by side; only visible columns are rendered.
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useLayoutEffect, useRef } from "react";
import { useWidth } from "../../charts/use-width";
import type { GroupComparison, Member } from "../../source/schema";
import { comparedWith, type GroupState } from "./group-state";
import { MemberColumn, type ColumnFrame } from "./member-column";

const NARROWEST = 320;
const WIDEST = 720;

export function MemberColumns({ frame, group, state }: { frame: ColumnFrame; group: GroupComparison; state: GroupState }) {
  const { members } = group;
  const [region, room] = useWidth<HTMLDivElement>(1200);
  const width = Math.max(NARROWEST, Math.min(WIDEST, Math.floor((room - 18) / Math.max(1, members.length))));
  const columns = useVirtualizer({
    horizontal: true,
    count: members.length,
    getScrollElement: () => region.current,
    estimateSize: () => width,
    overscan: 1,
    getItemKey: (place) => members[place]?.id ?? place,
  });
  useLayoutEffect(() => {
    columns.measure();
  }, [columns, width]);
  useShown(state, members, (place, isFirst) => {
    columns.scrollToIndex(place, { align: "auto" });
    if (!isFirst) region.current?.scrollIntoView({ block: "nearest" });
  });
  const items = columns.getVirtualItems();
  return (
    <div className="group-columns" ref={region} role="region" aria-label="Members side by side, the best reward first" tabIndex={0}>
      <div className="group-track" style={{ width: columns.getTotalSize(), paddingLeft: items[0]?.start ?? 0 }}>
        {items.map(({ index, key }) => {
          const member = members[index];
          if (member === undefined) return null;
          const other = comparedWith(group, index);
          return (
            <MemberColumn
              key={key}
              frame={frame}
              member={member}
              place={index}
              other={other}
              selected={member === state.selected}
              width={width}
              toCompare={members.every((one) => one.id !== other?.id) ? null : state.to({ compare: `${other?.id},${member.id}`, member: member.id })}
              toAllNumbers={state.to({ numbers: "all", member: member.id })}
            />
          );
        })}
      </div>
    </div>
  );
}

/** Calls `show` when the address names another member than before; what the page began with counts as first. */
function useShown(state: GroupState, members: readonly Member[], show: (place: number, isFirst: boolean) => void): void {
  const known = useRef<string | undefined>(undefined);
  const id = state.named ? state.selected?.id : undefined;
  useEffect(() => {
    const place = members.findIndex((member) => member.id === id);
    const isFirst = known.current === undefined;
    known.current = id ?? "";
    if (place >= 0) show(place, isFirst);
    // Scroll only if the member changed, not if the run grew.
  }, [id]);
}
