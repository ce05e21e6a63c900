// The field for an SQL condition, with the server's error message below.
import { useEffect, useId, useState } from "react";
import { LongText } from "../../parts/text";
import { useListing } from "./listing";
import { isWhereRefused } from "./table-state";

export function ConditionField({ error, close }: { error: Error | null; close: () => void }) {
  const { listing, change } = useListing();
  const [typed, setTyped] = useState(listing.where);
  const messageId = useId();
  useEffect(() => setTyped(listing.where), [listing.where]);
  const refused = isWhereRefused(listing, error);
  return (
    <form
      className="rollouts-condition"
      onSubmit={(event) => {
        event.preventDefault();
        change({ where: typed.trim() });
      }}
    >
      <label className="row">
        <span className="small soft mono">where</span>
        <input
          className="field mono"
          aria-label="SQL condition"
          aria-invalid={refused}
          aria-describedby={messageId}
          placeholder="reward < 0 and steps > 3"
          spellCheck={false}
          autoCapitalize="off"
          autoComplete="off"
          autoFocus={listing.where === ""}
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
        <button type="submit" className="button" disabled={typed.trim() === listing.where}>
          Apply
        </button>
        <button
          type="button"
          className="button quiet"
          aria-label="Remove the condition"
          onClick={() => {
            change({ where: "" });
            close();
          }}
        >
          ✕
        </button>
      </label>
      <div id={messageId} className="small" role={refused ? "alert" : undefined}>
        {refused && error !== null ? (
          <div className="bad mono">
            <LongText text={error.message} label="message" />
          </div>
        ) : (
          <p className="faint">
            An SQL expression over the columns of <code>rollouts</code>, such as <code>reward &lt; 0 and steps &gt; 3</code>.
          </p>
        )}
      </div>
    </form>
  );
}
