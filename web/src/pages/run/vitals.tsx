// The numbers that one looks at first: is it learning, from how many groups, and what goes wrong.
import type { ReactNode } from "react";
import { filter } from "../../addresses";
import { Sparkline } from "../../charts/sparkline";
import { count, number, plural, share } from "../../format";
import { Link } from "../../router";
import type { OutcomesBin, RunResponse, SeriesBin } from "../../source/schema";
import { isLimit } from "../../stop-reasons";
import { groupsWithout } from "./group-signal";
import { ANSWERED, type Selection } from "./selection";
import { shareOf, trendOf, type ShareTrend, type Trend } from "./trend";

interface Properties {
  answer: RunResponse;
  rewards: readonly SeriesBin[];
  lengths: readonly SeriesBin[];
  lengthName: string;
  outcomes: readonly OutcomesBin[];
  selection: Selection;
}

export function Vitals({ answer, rewards, lengths, lengthName, outcomes, selection }: Properties) {
  const rollouts = (bin: OutcomesBin) => bin.rollouts;
  const errors = shareOf(outcomes, (bin) => bin.statuses.error ?? 0, rollouts);
  const cut = shareOf(outcomes, (bin) => limitsIn(bin), rollouts);
  const flat = shareOf(outcomes, (bin) => bin.groups_without_signal, (bin) => bin.groups);
  return (
    <dl className="vitals">
      <Moving name="Mean reward" of={trendOf(rewards)} to={selection.rollouts()} strong />
      <FractionVital name="Groups without signal" of={flat} unit="group" to={groupsWithout(selection)} warn={0.5} />
      <FractionVital name="Failed" of={errors} unit="rollout" to={selection.rollouts(filter("status", "is", "error"))} warn={0} bad={0.05} />
      <FractionVital name="Hit a limit" of={cut} unit="rollout" to={limited(outcomes, selection)} warn={0.1} />
      <Moving name={`Response ${lengthName}`} of={trendOf(lengths)} to={selection.rollouts(ANSWERED)} />
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

function Moving({ name, of, to, strong = false }: { name: string; of: Trend; to: string; strong?: boolean }) {
  const told = (value: number | null) => number(value, Math.abs(of.mean ?? 0) >= 10 ? 1 : 3);
  const moved = of.line.length > 1 && of.first !== null && of.last !== null;
  return (
    <Tile name={strong && moved ? `${name}, lately` : name} to={to} line={of.line} value={strong && moved ? told(of.last) : told(of.mean)}>
      {moved ? (
        <>
          from {told(of.first)}
          {strong ? `, mean ${told(of.mean)}` : ` to ${told(of.last)}`}
        </>
      ) : (
        plural(of.n, "value")
      )}
    </Tile>
  );
}

interface FractionVitalProperties {
  name: string;
  of: ShareTrend;
  unit: string;
  to: string;
  /** From which share on it is worth a look; 0: from the first one. */
  warn: number;
  bad?: number;
}

function FractionVital({ name, of, unit, to, warn, bad = 2 }: FractionVitalProperties) {
  const value = of.whole === 0 ? 0 : of.part / of.whole;
  const tone = of.part === 0 ? "" : value >= bad ? "bad" : value >= warn ? "warn" : "";
  return (
    <Tile name={name} to={to} line={of.part === 0 ? [] : of.line} value={of.part === 0 && of.whole > 0 ? "none" : share(of.part, of.whole)} tone={tone}>
      {of.part === 0 ? `of ${plural(of.whole, unit)}` : `${count(of.part)} of ${plural(of.whole, unit)}`}
    </Tile>
  );
}

function Progress({ answer }: { answer: RunResponse }) {
  const { planned, finished, rollouts } = answer;
  const done = planned !== null && planned > 0 ? Math.min(1, finished / planned) : null;
  return (
    <div className="vital">
      <dt>Rollouts</dt>
      <dd>
        <span className="vital-value number">{count(rollouts)}</span>
        {done !== null && <progress className="run-progress" value={done} max={1} aria-label={`${share(finished, planned ?? 0)} of the planned episodes`} />}
        <span className="vital-more small soft">
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
    <div className="vital">
      <dt>{name}</dt>
      <dd>
        <Link to={to} className={`vital-value number ${tone}`} aria-label={`${name}: ${value}, show the rollouts`}>
          {value}
        </Link>
        {line.length > 1 && <Sparkline values={line} width={72} height={22} label={`${name} over iterations`} />}
        <span className="vital-more small soft">{children}</span>
      </dd>
    </div>
  );
}
