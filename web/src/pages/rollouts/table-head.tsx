// The head of the table of rollouts: a click sorts, a menu filters.
import { Name, plainText } from "../../parts/text";
import { Popover } from "../../parts/popover";
import type { Column } from "../../source/schema";
import { ColumnFilter } from "./column-filter";
import { descendsFirst, isNumeric } from "./columns";
import { capital } from "./filters";
import { type Change, type Listing, sortedBy } from "./listing";

interface HeadProperties {
  run: string;
  columns: readonly Column[];
  listing: Listing;
  measures: ReadonlySet<string>;
  change: Change;
}

export function TableHead({ run, columns, listing, measures, change }: HeadProperties) {
  return (
    <thead>
      <tr aria-rowindex={1}>
        <th scope="col" className="rollouts-place">
          <span className="only-heard">Place in the listing</span>
          <span aria-hidden="true">#</span>
        </th>
        {columns.map((column) => (
          <Heading key={column.name} run={run} column={column} listing={listing} measures={measures} change={change} />
        ))}
      </tr>
    </thead>
  );
}

function Heading({ run, column, listing, measures, change }: Omit<HeadProperties, "columns"> & { column: Column }) {
  const place = listing.sort.findIndex((key) => key.column === column.name);
  const key = listing.sort[place];
  const filtered = listing.filters.some((one) => one.column === column.name);
  const sort = (add: boolean): void => change({ sort: sortedBy(listing.sort, column.name, descendsFirst(column), add) });
  const heard = plainText(column.label);
  return (
    <th scope="col" className={isNumeric(column) ? "numeric" : undefined} aria-sort={key === undefined ? undefined : key.descending ? "descending" : "ascending"}>
      <div className="rollouts-heading">
        <button type="button" className="rollouts-sort" onClick={(event) => sort(event.shiftKey)} title={`Sort by ${heard}; with Shift, sort by it next`}>
          <Name text={capital(column.label)} />
          {key !== undefined && (
            <span className="rollouts-arrow" aria-hidden="true">
              {key.descending ? "↓" : "↑"}
              {listing.sort.length > 1 && <sub>{place + 1}</sub>}
            </span>
          )}
        </button>
        <Popover className="rollouts-funnel" button={<Funnel />} buttonLabel={`Filter by ${heard}`} label={`Filter by ${heard}`} pressed={filtered}>
          {(close) => <ColumnFilter run={run} column={column} measured={measures.has(column.name)} close={close} />}
        </Popover>
      </div>
    </th>
  );
}

export function Funnel() {
  return (
    <svg width="12" height="12" viewBox="0 0 16 16" fill="none" stroke="currentColor" strokeWidth="1.6" strokeLinejoin="round" aria-hidden="true">
      <path d="M2 3h12L9.5 8.4V13l-3-1.6v-3z" />
    </svg>
  );
}
