// Filters a column by its values, listed with counts, or by a text in them.
import { encodeName } from "../../column-names";
import { useState } from "react";
import type { Filter, Operation } from "../../filters";
import { count, plural } from "../../format";
import { plainText, VisibleText, truncated } from "../../parts/text";
import { Answered, Loading } from "../../parts/states";
import type { Column, Count, FacetsResponse } from "../../source/schema";
import { useSource } from "../../source/source";
import { useAnswer } from "../../source/use-answer";
import type { OwnFilters } from "./column-filter";
import { isNarrowed, selectionOf, useListing } from "./listing";

const FIELD_FROM = 8;
const LONGEST = 160;

export function ValueFilter({ run, column, own, set }: OwnFilters & { run: string; column: Column }) {
  const { live } = useSource();
  const { listing } = useListing();
  const isOfAll = !live && (isNarrowed({ ...listing, filters: listing.filters.filter((one) => one.column !== column.name) }) || listing.retried);
  const facets = useAnswer<FacetsResponse>("facets", { run, ...selectionOf(listing), columns: encodeName(column.name) }, { enabled: column.type !== "json" });
  // If the values cannot be counted, the table shows the error; a filter by text still works.
  if (column.type === "json" || (facets.error !== null && facets.data === undefined)) return <Within own={own} set={set} values={[]} column={column} />;
  return (
    <Answered of={facets} loading={<Loading lines={4} />}>
      {(answer) => (
        <>
          <Within own={own} set={set} values={answer.facets[column.name] ?? []} column={column} />
          {isOfAll && <p className="small faint">Counts of all rollouts of this report, unfiltered.</p>}
        </>
      )}
    </Answered>
  );
}

function Within({ own, set, values, column }: OwnFilters & { values: readonly Count[]; column: Column }) {
  const [typed, setTyped] = useState("");
  const listed = values.filter((one) => one.value.toLowerCase().includes(typed.toLowerCase()));
  const free = column.type !== "tags";
  const has: Operation = column.type === "tags" ? "has" : "is";
  return (
    <>
      {(free || values.length > FIELD_FROM) && (
        <form
          className="rollouts-typed"
          onSubmit={(event) => {
            event.preventDefault();
            if (typed !== "" && free) set([{ operation: "has", value: typed }]);
          }}
        >
          <input className="field" aria-label={`Text within ${plainText(column.label)}`} placeholder={free ? "Contains…" : "Find a tag…"} value={typed} onChange={(event) => setTyped(event.target.value)} />
          {free && (
            <button type="submit" className="button" disabled={typed === ""}>
              Contains
            </button>
          )}
        </form>
      )}
      {listed.length > 0 && (
        <ul className="rollouts-values">
          {listed.map((one) => (
            <Value key={one.value} counted={one} own={own} has={has} set={set} />
          ))}
        </ul>
      )}
      {values.length >= 100 && <p className="small faint">The {plural(values.length, "most frequent value")} are listed.</p>}
      {free && values.length > 0 && listed.length === 0 && <p className="small faint">No listed value holds this text.</p>}
    </>
  );
}

/** One value: only those that have it, or only those that do not. */
function Value({ counted: { value, n }, own, has, set }: { counted: Count; own: readonly Filter[]; has: Operation; set: OwnFilters["set"] }) {
  const only = own.some((one) => (one.operation === "is" || one.operation === "has") && one.value === value);
  const not = own.some((one) => one.operation === "not" && one.value === value);
  const others = own.filter((one) => one.value !== value && (has === "has" || one.operation === "not"));
  const shown = value === "" ? "empty" : value.length > LONGEST ? `${truncated(value, LONGEST)}…` : value;
  return (
    <li>
      <button type="button" className="rollouts-value" aria-pressed={only} onClick={() => set(only ? others : [...(has === "has" ? others : []), { operation: has, value }])}>
        <bdi>
          <VisibleText text={shown} />
        </bdi>
        <span className="number soft">{count(n)}</span>
      </button>
      <button type="button" className="rollouts-not" aria-pressed={not} aria-label={`Leave out ${plainText(shown, LONGEST)}`} title="Leave these out" onClick={() => set(not ? others : [...others, { operation: "not", value }])}>
        ≠
      </button>
    </li>
  );
}
