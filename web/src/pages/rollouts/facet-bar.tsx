// Menus of the values of some columns with their counts.
import { count } from "../../format";
import { Popover } from "../../parts/popover";
import { VisibleText, truncated } from "../../parts/text";
import type { Column, FacetsResponse } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";
import { ColumnFilter } from "./column-filter";
import { FACETS } from "./columns";
import { capital } from "./filters";
import { selectionOf, useListing } from "./listing";

/** Only columns with several values, and those with a filter, are offered. */
export function FacetBar({ run, columns }: { run: string; columns: ReadonlyMap<string, Column> }) {
  const { listing } = useListing();
  const { data } = useAnswer<FacetsResponse>("facets", { run, ...selectionOf(listing), columns: FACETS.join(",") });
  return FACETS.map((name) => {
    const column = columns.get(name);
    const own = listing.filters.filter((one) => one.column === name);
    const values = data?.facets[name] ?? [];
    if (column === undefined || (own.length === 0 && values.length < (name === "tags" ? 1 : 2))) return null;
    const only = own.length === 1 && (own[0]?.operation === "is" || own[0]?.operation === "has") ? own[0].value : null;
    return (
      <Popover
        key={name}
        label={`Filter by ${column.label}`}
        className="button rollouts-facet"
        pressed={own.length > 0}
        button={
          <>
            {capital(column.label)}
            {only !== null ? (
              <bdi className="rollouts-facet-value">
                <VisibleText text={truncated(only, 40)} />
              </bdi>
            ) : (
              <span className="faint number">{own.length > 0 ? own.length : count(values.length)}</span>
            )}
            <span aria-hidden="true" className="faint">
              ▾
            </span>
          </>
        }
      >
        {(close) => <ColumnFilter run={run} column={column} measured={false} close={close} />}
      </Popover>
    );
  });
}
