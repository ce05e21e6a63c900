// Messages in place of rows: no rollouts, no matches, or an error.
import { Empty, Failed } from "../../parts/states";
import { AnswerError } from "../../source/source";
import { EVERYTHING, isNarrowed, type Change, type Listing } from "./listing";
import type { Rows } from "./use-rows";

export function TableState({ rows, listing, change }: { rows: Rows; listing: Listing; change: Change }) {
  const { error, total } = rows;
  if (error !== null && total === null) {
    // The words are under the field that holds the condition.
    if (isWhereRefused(listing, error)) return <Cleared title="The SQL condition could not be used" change={change} changes={{ where: "" }} button="Remove the condition" />;
    return (
      <>
        <Failed error={error} retry={rows.again} />
        {isNarrowed(listing) && <Cleared change={change} changes={EVERYTHING} button="Remove all filters" />}
      </>
    );
  }
  if (total !== 0 || (listing.search !== "" && listing.since)) return null;
  if (isNarrowed(listing)) return <Cleared title="No rollout matches" change={change} changes={EVERYTHING} button="Remove all filters" />;
  return <Empty title="No rollouts yet">They appear here as soon as they are recorded.</Empty>;
}

function Cleared({ title, change, changes, button }: { title?: string; change: Change; changes: Parameters<Change>[0]; button: string }) {
  return (
    <div className="state" role={title === undefined ? undefined : "status"}>
      {title !== undefined && <h2>{title}</h2>}
      <button type="button" className="button" onClick={() => change(changes)}>
        {button}
      </button>
    </div>
  );
}

/** The error about a condition is shown below its field. */
export const isWhereRefused = (listing: Listing, error: Error | null): boolean =>
  listing.where !== "" && error instanceof AnswerError && error.status >= 400 && error.status < 500;
