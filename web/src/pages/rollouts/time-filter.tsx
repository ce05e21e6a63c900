// A span of time, in the reader's own time zone.
import { useState } from "react";
import type { Filter } from "../../filters";
import type { OwnFilters } from "./column-filter";
import { boundsOf } from "./filters";

export function TimeFilter({ own, set }: OwnFilters) {
  const bounds = boundsOf(own, own[0]?.column ?? "");
  const [from, setFrom] = useState(fieldOf(bounds.min));
  const [until, setUntil] = useState(fieldOf(bounds.max));
  const apply = (event: React.FormEvent): void => {
    event.preventDefault();
    const ends: Omit<Filter, "column">[] = [];
    if (from !== "") ends.push({ operation: "min", value: new Date(from).toISOString() });
    if (until !== "") ends.push({ operation: "below", value: new Date(until).toISOString() });
    set(ends);
  };
  return (
    <form className="stack rollouts-range" onSubmit={apply}>
      <label className="rollouts-bound">
        <span>From</span>
        <input className="field" type="datetime-local" step="1" value={from} onChange={(event) => setFrom(event.target.value)} />
      </label>
      <label className="rollouts-bound">
        <span>Before</span>
        <input className="field" type="datetime-local" step="1" value={until} onChange={(event) => setUntil(event.target.value)} />
      </label>
      <button type="submit" className="button primary">
        Filter
      </button>
    </form>
  );
}

/** A moment as a field for local times takes it. */
function fieldOf(value: string | null): string {
  const moment = value === null ? new Date(NaN) : new Date(value);
  if (Number.isNaN(moment.getTime())) return "";
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
