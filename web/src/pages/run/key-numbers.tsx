// The key numbers of a run with their trends: reward, groups without signal, failures, limits, length, progress.
import type { ReactNode } from "react";
import { filter } from "../../addresses";
import { Sparkline } from "../../charts/sparkline";
import { count, finite, number, plural, percent } from "../../format";
import { Link } from "../../router";
import type { OutcomesBin, RunResponse, SeriesBin } from "../../source/schema";
import { isLimit } from "../../stop-reasons";
import { groupsWithout } from "./group-signal";
import { ANSWERED, type Selection } from "./selection";

interface Properties {
  answer: RunResponse;
  rewards: readonly SeriesBin[];
  lengths: readonly SeriesBin[];
  lengthName: string;
  outcomes: readonly OutcomesBin[];
  selection: Selection;
}

export function KeyNumbers({ answer, rewards, lengths, lengthName, outcomes, selection }: Properties) {
  const rollouts = (bin: OutcomesBin) => bin.rollouts;
  const errors = fractionTrend(outcomes, (bin) => bin.statuses.error ?? 0, rollouts);
  const cut = fractionTrend(outcomes, (bin) => limitsIn(bin), rollouts);
  const flat = fractionTrend(outcomes, (bin) => bin.groups_without_signal, (bin) => bin.groups);
  return (
    <dl className="key-numbers">
      <TrendNumber name="Mean reward" of={meanTrend(rewards)} to={selection.rollouts()} strong />
      <FractionNumber name="Groups without signal" of={flat} unit="group" to={groupsWithout(selection)} warn={0.5} />
      <FractionNumber name="Failed" of={errors} unit="rollout" to={selection.rollouts(filter("status", "is", "error"))} warn={0} bad={0.05} />
      <FractionNumber name="Hit a limit" of={cut} unit="rollout" to={limited(outcomes, selection)} warn={0.1} />
      <TrendNumber name={`Response ${lengthName}`} of={meanTrend(lengths)} to={selection.rollouts(ANSWERED)} />
      <Progress answer={answer} />
    </dl>
  );
}

const limitsIn = (bin: OutcomesBin): number => Object.entries(bin.stop_reasons).reduce((sum, [reason, n]) => sum + (isLimit(reason) ? n : 0), 0);

/** The rollouts that hit a limit: those that stopped for none of the other reasons. */
function limited(outcomes: readonly OutcomesBin[], selection: Selection): string {
  const reasons = new Set(outcomes.flatMap((bin) => Object.keys(bin.stop_reasons)));
  const others = [...reasons].filter((reason) => !isLimit(reason));
  return selection.rollouts(...others.slice(0, 40).map((reason) => filter("stop_reason", "not", reason)));
}

function TrendNumber({ name, of, to, strong = false }: { name: string; of: Trend; to: string; strong?: boolean }) {
  const format = (value: number | null) => number(value, Math.abs(of.mean ?? 0) >= 10 ? 1 : 3);
  const moved = of.line.length > 1 && of.first !== null && of.last !== null;
  return (
    <Tile name={strong && moved ? `${name}, lately` : name} to={to} line={of.line} value={strong && moved ? format(of.last) : format(of.mean)}>
      {moved ? (
        <>
          from {format(of.first)}
          {strong ? `, mean ${format(of.mean)}` : ` to ${format(of.last)}`}
        </>
      ) : (
        plural(of.n, "value")
      )}
    </Tile>
  );
}

interface FractionNumberProperties {
  name: string;
  of: FractionTrend;
  unit: string;
  to: string;
  /** The fraction from which it gets this colour; 0: any. */
  warn: number;
  bad?: number;
}

function FractionNumber({ name, of, unit, to, warn, bad = 2 }: FractionNumberProperties) {
  const value = of.whole === 0 ? 0 : of.part / of.whole;
  const tone = of.part === 0 ? "" : value >= bad ? "bad" : value >= warn ? "warn" : "";
  return (
    <Tile name={name} to={to} line={of.part === 0 ? [] : of.line} value={of.part === 0 && of.whole > 0 ? "none" : percent(of.part, of.whole)} tone={tone}>
      {of.part === 0 ? `of ${plural(of.whole, unit)}` : `${count(of.part)} of ${plural(of.whole, unit)}`}
    </Tile>
  );
}

function Progress({ answer }: { answer: RunResponse }) {
  const { planned, finished, rollouts } = answer;
  const done = planned !== null && planned > 0 ? Math.min(1, finished / planned) : null;
  return (
    <div className="key-number">
      <dt>Rollouts</dt>
      <dd>
        <span className="key-number-value number">{count(rollouts)}</span>
        {done !== null && <progress className="run-progress" value={done} max={1} aria-label={`${percent(finished, planned ?? 0)} of the planned episodes`} />}
        <span className="key-number-note small soft">
          {planned === null ? `in ${plural(answer.groups, "group")}` : `${count(finished)} of ${plural(planned, "episode")} planned`}
        </span>
      </dd>
    </div>
  );
}

interface TileProperties {
  name: string;
  to: string;
  value: string;
  line: readonly (number | null)[];
  tone?: string;
  children: ReactNode;
}

function Tile({ name, to, value, line, tone = "", children }: TileProperties) {
  return (
    <div className="key-number">
      <dt>{name}</dt>
      <dd>
        <Link to={to} className={`key-number-value number ${tone}`} aria-label={`${name}: ${value}, show the rollouts`}>
          {value}
        </Link>
        {line.length > 1 && <Sparkline values={line} width={72} height={22} label={`${name} over iterations`} />}
        <span className="key-number-note small soft">{children}</span>
      </dd>
    </div>
  );
}

interface Trend {
  mean: number | null;
  n: number;
  first: number | null;
  last: number | null;
  /** Per bin, for a small line. */
  line: (number | null)[];
}

function meanTrend(bins: readonly SeriesBin[]): Trend {
  const ends = Math.max(1, Math.round(bins.length / 10));
  return {
    mean: mean(bins),
    n: bins.reduce((sum, bin) => sum + bin.n, 0),
    first: mean(bins.slice(0, ends)),
    last: mean(bins.slice(-ends)),
    line: bins.map((bin) => finite(bin.mean)),
  };
}

/** The mean of all values in some bins, which may hold different numbers of them. */
function mean(bins: readonly SeriesBin[]): number | null {
  const known = bins.filter((bin) => finite(bin.mean) !== null && bin.n > 0);
  const n = known.reduce((sum, bin) => sum + bin.n, 0);
  return n === 0 ? null : finite(Number(known.reduce((sum, bin) => sum + (finite(bin.mean) ?? 0) * (bin.n / n), 0).toPrecision(12)));
}

interface FractionTrend {
  part: number;
  whole: number;
  line: (number | null)[];
}

function fractionTrend(bins: readonly OutcomesBin[], part: (bin: OutcomesBin) => number, whole: (bin: OutcomesBin) => number): FractionTrend {
  const sum = (of: (bin: OutcomesBin) => number) => bins.reduce((total, bin) => total + of(bin), 0);
  return { part: sum(part), whole: sum(whole), line: bins.map((bin) => (whole(bin) > 0 ? part(bin) / whole(bin) : null)) };
}
