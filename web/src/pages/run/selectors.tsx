// Selects the split and the environment of the charts if there are several.
import { count } from "../../format";
import { plainText } from "../../parts/text";
import { go } from "../../router";
import { useSource } from "../../source/source";
import type { Count, RunResponse } from "../../source/schema";
import { ALL, filtersFor, type Selection } from "./selection";

export function Selectors({ answer, selection }: { answer: RunResponse; selection: Selection }) {
  const source = useSource();
  const has = (split: string | null, env: string | null): boolean => source.has("outcomes", { filter: filtersFor(split, env) });
  const hasSplit = (split: string | null): boolean => has(split, selection.env);
  const hasEnv = (env: string | null): boolean => has(selection.split, env);
  const showsSplits = answer.splits.length > 1 || selection.split !== null;
  const showsEnvs = answer.envs.length > 1 || selection.env !== null;
  if (!showsSplits && !showsEnvs) return null;
  const lacks = (showsSplits && !answer.splits.every(({ value }) => hasSplit(value))) || (showsEnvs && !answer.envs.every(({ value }) => hasEnv(value)));
  return (
    <div className="row wrap run-selectors">
      {showsSplits && (
        <Choice name="Split" all="All splits" of={answer.splits} value={selection.split} has={hasSplit} choose={(split) => go(selection.with({ split: split ?? ALL }))} />
      )}
      {showsEnvs && (
        <Choice name="Environment" all="All environments" of={answer.envs} value={selection.env} has={hasEnv} choose={(env) => go(selection.with({ env }))} />
      )}
      {lacks && <span className="small faint">This report has no charts for the choices in grey.</span>}
    </div>
  );
}

interface Properties {
  name: string;
  all: string;
  of: readonly Count[];
  value: string | null;
  /** Whether there are charts for a choice. */
  has: (value: string | null) => boolean;
  choose: (value: string | null) => void;
}

// Options are identified by their index: a value may be any text, `all` included.
function Choice({ name, all, of, value, has, choose }: Properties) {
  const place = of.findIndex((one) => one.value === value);
  return (
    <label className="row small soft">
      {name}
      <select
        className="field run-select"
        value={value === null ? "all" : place < 0 ? "other" : place}
        onChange={(event) => choose(of[Number(event.target.value)]?.value ?? null)}
      >
        <option value="all" disabled={!has(null)}>
          {all}
        </option>
        {value !== null && place < 0 && <option value="other">{plainText(value)}</option>}
        {of.map((one, index) => (
          <option key={one.value} value={index} disabled={!has(one.value)}>
            {plainText(one.value, 60)} ({count(one.n)})
          </option>
        ))}
      </select>
    </label>
  );
}
