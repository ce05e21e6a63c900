// A value of a regrade beside the reward before it.
import { finite, number, signed } from "../format";
import type { Float } from "../source/schema";

/** Sums of the same numbers may differ in the last digits. */
const SAME = 1e-9;

export const changeOf = (before: Float | null, after: Float | null): number | null => {
  const [from, to] = [finite(before), finite(after)];
  return from === null || to === null ? null : Math.abs(to - from) <= SAME ? 0 : to - from;
};

export function OldNew({ before, after }: { before: Float | null; after: Float | null }) {
  return (
    <span className="number mono">
      <span className="faint">{number(before)}</span> → <b>{number(after)}</b> <Change value={changeOf(before, after)} />
    </span>
  );
}

export function Change({ value }: { value: number | null }) {
  if (value === null) return <span className="faint">–</span>;
  return <span className={`number mono ${value > 0 ? "good" : value < 0 ? "bad" : "faint"}`}>{value === 0 ? "=" : signed(value)}</span>;
}
