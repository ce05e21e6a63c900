// A cell of the table of rollouts.
import { memo } from "react";
import { toGroup } from "../../addresses";
import { finite, number, seconds, time } from "../../format";
import { Badge, StopReasonBadge } from "../../parts/badge";
import { plainText, VisibleText, truncated } from "../../parts/text";
import { Advantage, Reward } from "../../parts/reward";
import { Link } from "../../router";
import type { Column, Float, GroupKey, Json, RolloutRow } from "../../source/schema";

const LONGEST = 240;

interface CellProperties {
  run: string;
  row: RolloutRow;
  column: Column;
  /** The least and the greatest reward of the run: what a bar is drawn over. */
  reach: readonly [number, number] | null;
  /** Whether Tab stops at its links. */
  reachable: boolean;
}

export const Cell = memo(function Cell({ run, row, column, reach, reachable }: CellProperties) {
  const value = row[column.name] ?? null;
  if (column.name === "group") return <GroupCell run={run} row={row} reachable={reachable} />;
  if (value === null) return <span className="faint">–</span>;
  if (column.name === "reward") return <RewardCell value={value as Float} reach={reach} />;
  if (column.name === "advantage") return <Advantage value={value as Float} />;
  if (column.name === "stop_reason") return <StopReasonBadge reason={cut(textOf(value))} status={textOf(row.status ?? "ok")} />;
  if (column.name === "status") return <Badge tone={value === "ok" ? "good" : value === "error" ? "bad" : "warn"}>{plainText(textOf(value))}</Badge>;
  if (column.name === "seconds") return <>{seconds(value as Float)}</>;
  switch (column.type) {
    case "number":
      return <>{column.name === "seed" ? textOf(value) : number(value as Float)}</>;
    case "time":
      return <>{time(textOf(value))}</>;
    case "boolean":
      return <>{value === true ? "yes" : "no"}</>;
    case "tags":
      return <Tags tags={Array.isArray(value) ? value.map(textOf) : [textOf(value)]} />;
    case "json":
      return <Written text={textOf(value)} code />;
    default:
      return <Written text={textOf(value)} code={column.name === "id" || column.name === "run" || column.name === "session"} />;
  }
});

function RewardCell({ value, reach }: { value: Float; reach: CellProperties["reach"] }) {
  const size = finite(value);
  return (
    <span className="rollouts-reward">
      {reach !== null && size !== null && <Bar value={size} reach={reach} />}
      <Reward value={value} />
    </span>
  );
}

/** From zero to the value, over the column's range. */
function Bar({ value, reach: [low, high] }: { value: number; reach: readonly [number, number] }) {
  const place = (one: number): number => (100 * (Math.max(low, Math.min(high, one)) - low)) / (high - low);
  const [zero, end] = [place(0), place(value)];
  return (
    <span className="rollouts-bar" aria-hidden="true">
      <span className={value < 0 ? "below" : "above"} style={{ left: `${Math.min(zero, end)}%`, width: `max(2px, ${Math.abs(end - zero)}%)` }} />
      {low < 0 && high > 0 && <span className="zero" style={{ left: `${zero}%` }} />}
    </span>
  );
}

function GroupCell({ run, row, reachable }: { run: string; row: RolloutRow; reachable: boolean }) {
  const key: GroupKey = { split: textOf(row.split ?? ""), iteration: Number(row.iteration), env: textOf(row.env ?? ""), group: textOf(row.group ?? "") };
  return (
    <Link to={toGroup(run, key)} title={`Compare the rollouts of ${plainText(key.group)}`} tabIndex={reachable ? 0 : -1}>
      <Written text={key.group} />
    </Link>
  );
}

function Tags({ tags }: { tags: readonly string[] }) {
  return (
    <span className="rollouts-tags">
      {tags.map((tag, place) => (
        <Badge key={place} title={plainText(tag, LONGEST)}>
          <bdi>
            <VisibleText text={cut(tag)} />
          </bdi>
        </Badge>
      ))}
    </span>
  );
}

function Written({ text, code = false }: { text: string; code?: boolean }) {
  const shown = cut(text);
  return (
    <bdi className={code ? "mono" : undefined} title={shown.length > 12 ? plainText(text, LONGEST) : undefined}>
      <VisibleText text={shown.replace(/\s+/g, " ")} />
    </bdi>
  );
}

const cut = (text: string): string => (text.length > LONGEST ? `${truncated(text, LONGEST)}…` : text);
const textOf = (value: Json): string => (typeof value === "string" ? value : JSON.stringify(value));
