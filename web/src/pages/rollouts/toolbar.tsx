// The toolbar above the table: search, filters, SQL condition, columns, retried attempts.
import { type RefObject, useEffect, useMemo, useRef, useState } from "react";
import { count } from "../../format";
import { useShortcuts } from "../../shortcuts";
import type { Column, RunResponse } from "../../source/schema";
import { useSource } from "../../source/source";
import { ColumnMenu } from "./column-menu";
import { ConditionField } from "./condition-field";
import { FacetBar } from "./facet-bar";
import { FilterMenu } from "./filter-menu";
import { useListing } from "./listing";

interface ToolbarProperties {
  run: RunResponse;
  columns: ReadonlyMap<string, Column>;
  shown: readonly Column[];
  error: Error | null;
}

export function Toolbar({ run, columns, shown, error }: ToolbarProperties) {
  const { live } = useSource();
  const { listing, change } = useListing();
  const search = useRef<HTMLInputElement>(null);
  const filter = useRef<HTMLButtonElement>(null);
  const choose = useRef<HTMLButtonElement>(null);
  const [writing, setWriting] = useState(false);
  const measures = useMemo(() => new Set(run.measures.map((measure) => measure.name)), [run.measures]);
  const condition = live && (writing || listing.where !== "");
  useShortcuts(
    useMemo(
      () => [
        { keys: "/", does: "Search prompts and responses", run: () => search.current?.focus() },
        { keys: "f", does: "Filter by a column", run: () => filter.current?.click() },
        { keys: "c", does: "Choose columns", run: () => choose.current?.click() },
      ],
      [],
    ),
  );
  return (
    <div className="rollouts-toolbar">
      <div className="row wrap">
        <SearchField field={search} />
        <FacetBar run={run.key} columns={columns} />
        <FilterMenu run={run.key} columns={run.columns} measures={measures} button={filter} />
        {live && (
          <button type="button" className="button" aria-pressed={condition} onClick={() => setWriting(!condition)} disabled={listing.where !== ""}>
            SQL condition
          </button>
        )}
        <span className="rollouts-end row wrap">
          {(run.retried > 0 || listing.retried) && (
            <label className="rollouts-switch" title="Attempts that failed and were retried">
              <input type="checkbox" role="switch" checked={listing.retried} onChange={(event) => change({ retried: event.target.checked })} />
              Retried attempts <span className="faint number">{count(run.retried)}</span>
            </label>
          )}
          <ColumnMenu all={run.columns} shown={shown} change={change} button={choose} />
        </span>
      </div>
      {condition && <ConditionField error={error} close={() => setWriting(false)} />}
    </div>
  );
}

function SearchField({ field }: { field: RefObject<HTMLInputElement | null> }) {
  const { listing, change } = useListing();
  const [typed, setTyped] = useState(listing.search);
  useEffect(() => setTyped(listing.search), [listing.search]);
  return (
    <form
      className="rollouts-search"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        change({ search: typed.trim() });
      }}
    >
      <input
        ref={field}
        className="field"
        type="search"
        aria-label="Search prompts and responses"
        placeholder="Search prompts and responses"
        title="Enter searches all prompts and responses, the newest rollouts first"
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          if (event.target.value === "" && listing.search !== "") change({ search: "" });
        }}
      />
      <kbd aria-hidden="true">{typed !== listing.search ? "↵" : "/"}</kbd>
    </form>
  );
}
