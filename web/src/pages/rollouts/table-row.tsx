// One rollout of the table; a click anywhere on it opens it.
import { memo, useCallback, useRef } from "react";
import { toRollout } from "../../addresses";
import { count } from "../../format";
import { FindingDot } from "../../parts/finding-marks";
import { Link } from "../../router";
import type { Mark } from "../../source/findings";
import type { Parameters } from "../../source/source";
import type { Column, RolloutRow } from "../../source/schema";
import { Cell } from "./cell";
import { isNumeric } from "./columns";

interface RowProperties {
  run: string;
  index: number;
  row: RolloutRow | undefined;
  columns: readonly Column[];
  listingParameters: Parameters;
  reach: readonly [number, number] | null;
  marks: readonly Mark[];
  selected: boolean;
  /** Whether Tab stops at it. */
  reachable: boolean;
  select: (index: number) => void;
}

export const TableRow = memo(function TableRow({ run, index, row, columns, listingParameters, reach, marks, selected, reachable, select }: RowProperties) {
  const link = useRef<HTMLAnchorElement>(null);
  const open = useCallback(
    (event: React.MouseEvent) => {
      if (event.target instanceof Element && event.target.closest("a, button") !== null) return;
      if (window.getSelection()?.isCollapsed === false) return;
      link.current?.click();
    },
    [link],
  );
  if (row === undefined)
    return (
      <tr aria-rowindex={index + 2} className="rollouts-row" aria-busy="true" aria-current={selected ? "true" : undefined}>
        <th scope="row" className="rollouts-place">
          {count(index + 1)}
        </th>
        {columns.map((column) => (
          <td key={column.name}>
            <div className="skeleton rollouts-missing" />
          </td>
        ))}
      </tr>
    );
  return (
    <tr aria-rowindex={index + 2} className="rollouts-row" aria-current={selected ? "true" : undefined} onClick={open}>
      <th scope="row" className="rollouts-place">
        <FindingDot marks={marks} />
        <Link
          ref={link}
          to={toRollout(run, row.id, listingParameters)}
          data-row={index}
          tabIndex={reachable ? 0 : -1}
          aria-label={`Open rollout ${count(index + 1)}`}
          title={row.id}
          onClick={() => select(index)}
        >
          {count(index + 1)}
        </Link>
      </th>
      {columns.map((column) => (
        <td key={column.name} className={isNumeric(column) ? "numeric number" : undefined}>
          <Cell run={run} row={row} column={column} reach={reach} reachable={reachable} />
        </td>
      ))}
    </tr>
  );
});
