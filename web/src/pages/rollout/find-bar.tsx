// Finds text in the transcript: the browser's own search sees only what is drawn.
import { useEffect, useState, type RefObject } from "react";
import { count } from "../../format";
import { go, useRoute } from "../../router";
import { MOST_FOUND, type Found } from "./transcript-find";
import { toFind, viewState } from "./view-state";

interface FindBarProperties {
  field: RefObject<HTMLInputElement | null>;
  found: readonly Found[];
  /** Brings something found into sight. */
  show: (found: Found | null) => void;
}

export function FindBar({ field, found, show }: FindBarProperties) {
  const route = useRoute();
  const { find } = viewState(route);
  const [at, setAt] = useState(0);
  const own = route.parameters.has("find");
  useEffect(() => {
    setAt(0);
    show(own ? (found[0] ?? null) : null);
  }, [found, own, show]);
  const step = (by: number) => {
    if (found.length === 0) return;
    const next = (at + by + found.length) % found.length;
    setAt(next);
    // A new object, so that coming back to the only one brings it into sight again.
    show({ ...(found[next] as Found) });
  };
  return (
    <div className="transcript-find" role="search">
      <input
        ref={field}
        className="field"
        type="search"
        aria-label="Find in the transcript"
        placeholder="Find  /"
        value={find}
        onChange={(event) => go(toFind(route, event.target.value), { replace: true })}
        onKeyDown={(event) => {
          if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
        }}
      />
      {find !== "" && (
        <>
          <span className="small faint number" role="status">
            {found.length === 0 ? "none" : `${count(at + 1)} of ${found.length === MOST_FOUND ? `${count(MOST_FOUND)}+` : count(found.length)}`}
          </span>
          <button type="button" className="button quiet" aria-label="Find the one before" disabled={found.length === 0} onClick={() => step(-1)}>
            ↑
          </button>
          <button type="button" className="button quiet" aria-label="Find the next" disabled={found.length === 0} onClick={() => step(1)}>
            ↓
          </button>
        </>
      )}
    </div>
  );
}
