// Filters a number column by a range.
import { useEffect, useState } from "react";
import type { Filter } from "../../filters";
import { plainText } from "../../parts/text";
import type { Column } from "../../source/schema";
import type { OwnFilters } from "./column-filter";
import { Distribution } from "./distribution";
import { boundsOf } from "./filters";

export function NumberFilter({ run, column, measured, own, set }: OwnFilters & { run: string; column: Column; measured: boolean }) {
  const bounds = boundsOf(own, column.name);
  const [min, setMin] = useState(bounds.min ?? "");
  const [max, setMax] = useState(bounds.max ?? "");
  useEffect(() => {
    setMin(bounds.min ?? "");
    setMax(bounds.max ?? "");
  }, [bounds.min, bounds.max]);
  const apply = (event: React.FormEvent): void => {
    event.preventDefault();
    set(rangeFilters(min, max, max === bounds.max ? bounds.inclusive : true));
  };
  return (
    <form className="stack rollouts-range" onSubmit={apply}>
      {measured && <Distribution run={run} measure={column.name} label={plainText(column.label)} small />}
      <div className="row">
        <label className="rollouts-bound">
          <span>At least</span>
          <input className="field" type="number" step="any" value={min} onChange={(event) => setMin(event.target.value)} />
        </label>
        <label className="rollouts-bound">
          <span>{max !== "" && max === bounds.max && !bounds.inclusive ? "Below" : "At most"}</span>
          <input className="field" type="number" step="any" value={max} onChange={(event) => setMax(event.target.value)} />
        </label>
        <button type="submit" className="button primary">
          Filter
        </button>
      </div>
    </form>
  );
}

export function rangeFilters(min: string, max: string, inclusive: boolean): Omit<Filter, "column">[] {
  return [
    ...(min === "" ? [] : [{ operation: "min" as const, value: min }]),
    ...(max === "" ? [] : [{ operation: inclusive ? ("max" as const) : ("below" as const), value: max }]),
  ];
}
