// The state of the table of rollouts in its address: filters, search, order, columns.
import { createContext, useCallback, useContext, useMemo } from "react";
import { type Filter, readFilter, writeFilter } from "../../filters";
import { decodeNames, encodeName, encodeNames } from "../../column-names";
import { changed, go, parse, useRoute } from "../../router";
import type { Parameters } from "../../source/source";

interface SortKey {
  column: string;
  descending: boolean;
}

export interface Listing {
  filters: readonly Filter[];
  search: string;
  /** How far the search came: see `useTextSearch`. */
  since: string | null | undefined;
  where: string;
  sort: readonly SortKey[];
  retried: boolean;
  /** The columns that were chosen; null for the usual ones. */
  columns: readonly string[] | null;
  /** Whose distribution is drawn above the table. */
  measure: string;
  /** The row that is selected, from 0. */
  row: number | null;
}

interface Changes {
  filters?: readonly Filter[];
  search?: string;
  where?: string;
  sort?: readonly SortKey[];
  retried?: boolean;
  columns?: readonly string[] | null;
  measure?: string;
  row?: number | null;
}

export type Change = (changes: Changes, options?: { replace?: boolean }) => void;

export const SinceContext = createContext<Listing["since"]>(undefined);

function readListing(parameters: URLSearchParams, since: Listing["since"]): Listing {
  const row = Number.parseInt(parameters.get("row") ?? "", 10);
  return {
    filters: parameters.getAll("filter").flatMap((text) => readFilter(text) ?? []),
    search: parameters.get("search") ?? "",
    since,
    where: parameters.get("where") ?? "",
    sort: decodeNames(parameters.get("sort")).map((key) => ({ column: key.replace(/^-/, ""), descending: key.startsWith("-") })),
    retried: parameters.get("retried") === "1",
    columns: parameters.has("columns") ? decodeNames(parameters.get("columns")) : null,
    measure: parameters.get("measure") ?? "reward",
    row: Number.isSafeInteger(row) && row > 0 ? row - 1 : null,
  };
}

/** The listing of the address, and a function that changes some of it; a new selection starts at the top. */
export function useListing(): { listing: Listing; change: Change } {
  const { parameters } = useRoute();
  const since = useContext(SinceContext);
  const listing = useMemo(() => readListing(parameters, since), [parameters, since]);
  const change = useCallback<Change>((changes, options = {}) => {
    const starts = ["filters", "search", "where", "sort", "retried"].some((name) => name in changes);
    go(changed(parse(window.location.hash), { ...(starts ? { row: null } : {}), ...parametersOf(changes) }), options);
  }, []);
  return { listing, change };
}

/** The parameters of requests about rollouts, optionally with other filters. */
export function selectionOf(listing: Listing, filters: readonly Filter[] = listing.filters): Parameters {
  return { filter: filters.map(writeFilter), search: listing.search, since: listing.since, where: listing.where, retried: listing.retried };
}

/** The parameters of the listing in a rollout's address, for its previous and next links. */
export function listingParameters(listing: Listing): Parameters {
  return { ...selectionOf(listing), sort: encodeSort(listing.sort) };
}

export const encodeSort = (sort: readonly SortKey[]): string => sort.map((key) => `${key.descending ? "-" : ""}${encodeName(key.column)}`).join(",");

export const isNarrowed = (listing: Listing): boolean => listing.filters.length > 0 || listing.search !== "" || listing.where !== "";

export const EVERYTHING: Changes = { filters: [], search: "", where: "" };

/** The order after a click on a column: first its usual direction, then the other, then none. */
export function sortedBy(sort: readonly SortKey[], column: string, descendingFirst: boolean, add: boolean): SortKey[] {
  const before = sort.find((key) => key.column === column);
  const others = add ? sort.filter((key) => key.column !== column) : [];
  if (before === undefined) return [...others, { column, descending: descendingFirst }];
  if (before.descending !== descendingFirst) return others;
  const turned = { column, descending: !descendingFirst };
  return add ? sort.map((key) => (key.column === column ? turned : key)) : [turned];
}

function parametersOf(changes: Changes): Parameters {
  const { filters, sort, columns, row, ...rest } = changes;
  return {
    ...rest,
    ...(filters === undefined ? {} : { filter: filters.map(writeFilter) }),
    ...(sort === undefined ? {} : { sort: encodeSort(sort) }),
    ...(columns === undefined ? {} : { columns: columns === null ? null : encodeNames(columns) }),
    ...(row === undefined ? {} : { row: row === null ? null : row + 1 }),
    ...(rest.measure === "reward" ? { measure: null } : {}),
  };
}
