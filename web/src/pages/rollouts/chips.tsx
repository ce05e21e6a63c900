// The active filters in words, each with a button that removes it.
import { useMemo } from "react";
import { plainText, VisibleText, truncated } from "../../parts/text";
import type { Column } from "../../source/schema";
import { conditionsOf } from "./filters";
import { EVERYTHING, isNarrowed, useListing } from "./listing";

const LONGEST = 140;

export function Chips({ columns }: { columns: ReadonlyMap<string, Column> }) {
  const { listing, change } = useListing();
  const conditions = useMemo(() => conditionsOf(listing.filters, columns), [listing.filters, columns]);
  if (!isNarrowed(listing)) return null;
  return (
    <ul className="rollouts-chips" aria-label="Active filters">
      {conditions.map(({ filters, words }) => (
        <Chip key={words} words={words} remove={() => change({ filters: listing.filters.filter((one) => !filters.includes(one)) })} />
      ))}
      {listing.search !== "" && <Chip words={`Text contains “${listing.search}”`} remove={() => change({ search: "" })} />}
      {listing.where !== "" && <Chip words={listing.where} code remove={() => change({ where: "" })} />}
      <li>
        <button type="button" className="button quiet" onClick={() => change(EVERYTHING)}>
          Remove all
        </button>
      </li>
    </ul>
  );
}

function Chip({ words, code = false, remove }: { words: string; code?: boolean; remove: () => void }) {
  const shown = words.length > LONGEST ? `${truncated(words, LONGEST)}…` : words;
  return (
    <li className="rollouts-chip">
      <bdi className={code ? "mono" : undefined}>
        <VisibleText text={shown} />
      </bdi>
      <button type="button" onClick={remove} aria-label={`Remove: ${plainText(words, LONGEST)}`}>
        ✕
      </button>
    </li>
  );
}
