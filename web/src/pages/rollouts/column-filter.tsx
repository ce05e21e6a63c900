// The filter menu of a column, by its type.
import type { Filter } from "../../filters";
import { Name } from "../../parts/text";
import type { Column } from "../../source/schema";
import { capital, exchanged, isTrue } from "./filters";
import { useListing } from "./listing";
import { NumberFilter } from "./number-filter";
import { TimeFilter } from "./time-filter";
import { ValueFilter } from "./value-filter";

interface ColumnFilterProperties {
  run: string;
  column: Column;
  /** Whether its distribution can be requested. */
  measured: boolean;
  close: () => void;
}

/** What a menu of one column does: set that column's filters, and close. */
export interface OwnFilters {
  own: readonly Filter[];
  set: (filters: readonly Omit<Filter, "column">[], options?: { stay?: boolean; replace?: boolean }) => void;
}

export function ColumnFilter({ run, column, measured, close }: ColumnFilterProperties) {
  const { listing, change } = useListing();
  const filters: OwnFilters = {
    own: listing.filters.filter((one) => one.column === column.name),
    set: (others, options = {}) => {
      change({ filters: exchanged(listing.filters, column.name, others) }, options.replace === true ? { replace: true } : {});
      if (options.stay !== true) close();
    },
  };
  return (
    <div className="rollouts-menu">
      <header className="row spread">
        <h3>
          <Name text={capital(column.label)} />
        </h3>
        {filters.own.length > 0 && (
          <button type="button" className="button quiet" onClick={() => filters.set([])}>
            Remove
          </button>
        )}
      </header>
      {column.type === "number" && <NumberFilter run={run} column={column} measured={measured} {...filters} />}
      {column.type === "time" && <TimeFilter {...filters} />}
      {column.type === "boolean" && <Choice {...filters} />}
      {(column.type === "text" || column.type === "tags" || column.type === "json") && <ValueFilter run={run} column={column} {...filters} />}
      {column.type !== "boolean" && column.type !== "tags" && <Presence {...filters} />}
    </div>
  );
}

function Choice({ own, set }: OwnFilters) {
  const now = own.find((one) => one.operation === "is");
  return (
    <div className="row">
      {[true, false].map((value) => (
        <button
          key={String(value)}
          type="button"
          className="button"
          aria-pressed={now !== undefined && isTrue(now.value) === value}
          onClick={() => set([{ operation: "is", value: String(value) }])}
        >
          {value ? "Yes" : "No"}
        </button>
      ))}
    </div>
  );
}

/** Whether there is a value at all. */
function Presence({ own, set }: OwnFilters) {
  return (
    <div className="row wrap rollouts-presence">
      {(["notnull", "null"] as const).map((operation) => {
        const pressed = own.some((one) => one.operation === operation);
        return (
          <button key={operation} type="button" className="button" aria-pressed={pressed} onClick={() => set(pressed ? [] : [{ operation, value: "" }])}>
            {operation === "null" ? "Missing" : "Not missing"}
          </button>
        );
      })}
    </div>
  );
}
