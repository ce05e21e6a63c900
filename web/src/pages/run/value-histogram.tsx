// The histogram of the measure: of the selected iteration, or of all iterations.
import { useMemo } from "react";
import { filter } from "../../addresses";
import { ChartTable } from "../../charts/chart-table";
import { Histogram } from "../../charts/histogram";
import { count, finite, number, plural } from "../../format";
import { Name, plainText } from "../../parts/text";
import { Answered, Empty, Loading } from "../../parts/states";
import { Link } from "../../router";
import { useAnswer } from "../../source/use-answer";
import type { Bin, HistogramResponse, IterationHistogramsResponse, SeriesBin } from "../../source/schema";
import { iterationsOf } from "../../charts/ticks";
import { HISTOGRAM_BINS, type Selection, valued, within } from "./selection";

interface Properties {
  title: string;
  bins: readonly SeriesBin[];
  selection: Selection;
  height: number;
}

export function ValueHistogram({ title, bins, selection, height }: Properties) {
  const { run, measure, filters, iteration } = selection;
  const bin = iteration === null ? undefined : bins.find((one) => one.first <= iteration && iteration <= one.last);
  const where = bin === undefined ? [] : within(bin);
  const question = { run, measure, bins: HISTOGRAM_BINS, filter: filters };
  const all = useAnswer<HistogramResponse>("histogram", question);
  const each = useAnswer<IterationHistogramsResponse>("iteration_histograms", question, { enabled: bin !== undefined });
  const domain = useMemo(() => reach(bins), [bins]);
  const n = bin === undefined ? bins.reduce((sum, one) => sum + one.rollouts, 0) : bin.rollouts;
  return (
    <section className="card chart-card histogram" aria-labelledby="chart-histogram">
      <header>
        <h2 id="chart-histogram">{bin === undefined ? "All iterations" : iterationsOf(bin)}</h2>
        <div className="row wrap">
          {bin !== undefined && <Walk {...{ bins, bin, selection }} />}
          <Link className="small" to={selection.rollouts(...where)}>
            {plural(n, "rollout")} →
          </Link>
        </div>
      </header>
      <div className="body">
        {bin === undefined ? (
          <Answered of={all} loading={<Loading lines={6} />}>
            {(found) => <Drawn {...{ found, height, domain, title, where, selection }} caption="all iterations" />}
          </Answered>
        ) : (
          <Answered of={each} loading={<Loading lines={6} />}>
            {({ iterations }) => <Drawn {...{ height, domain, title, where, selection }} found={iterations.find(({ first }) => first === bin.first)} caption={iterationsOf(bin)} />}
          </Answered>
        )}
      </div>
    </section>
  );
}

interface DrawnProperties {
  found: Omit<HistogramResponse, "measure"> | undefined;
  height: number;
  domain: readonly [number, number] | undefined;
  title: string;
  where: readonly string[];
  caption: string;
  selection: Selection;
}

function Drawn({ found, height, domain, title, where, caption, selection }: DrawnProperties) {
  const { measure } = selection;
  const asTable = selection.route.parameters.getAll("table").includes("measure");
  const label = `Distribution of ${plainText(title)}, ${caption}`;
  if (found === undefined || found.n === 0 && found.missing + found.non_finite === 0) return <Empty title="No rollouts">Nothing was recorded here.</Empty>;
  const to = (bin: Bin, last: boolean) => selection.rollouts(...where, ...valued(measure, bin, last));
  return (
    <>
      {asTable ? (
        <ChartTable
          caption={label}
          columns={[plainText(title), "Rollouts"]}
          rows={found.bins.map((bin, index) => ({
            to: to(bin, index === found.bins.length - 1),
            cells: [`${number(bin.low)} to ${number(bin.high)}`, count(bin.n)],
          }))}
        />
      ) : found.n === 0 ? (
        <p className="soft run-none">No rollout here has a value of this measure.</p>
      ) : (
        <Histogram bins={found.bins} label={label} to={to} height={height} domain={around(domain, found.bins)}>
          <b>
            <Name text={title} />
          </b>
          <span>{plural(found.n, "value")}</span>
        </Histogram>
      )}
      <ul className="legend">
        {found.missing > 0 && (
          <li>
            <a href={selection.rollouts(...where, filter(measure, "null"))}>{count(found.missing)} without a value</a>
          </li>
        )}
        {found.non_finite > 0 && <li className="bad">{count(found.non_finite)} not finite</li>}
      </ul>
    </>
  );
}

function Walk({ bins, bin, selection }: { bins: readonly SeriesBin[]; bin: SeriesBin; selection: Selection }) {
  const index = bins.indexOf(bin);
  const before = bins[index - 1];
  const after = bins[index + 1];
  return (
    <span className="row iteration-links">
      <IterationLink to={before === undefined ? null : selection.with({ iteration: before.first })} label="The iteration before" sign="‹" />
      <IterationLink to={after === undefined ? null : selection.with({ iteration: after.first })} label="The iteration after" sign="›" />
      <Link className="button quiet" to={selection.with({ iteration: null })} aria-label="Show all iterations">
        ✕
      </Link>
    </span>
  );
}

function IterationLink({ to, label, sign }: { to: string | null; label: string; sign: string }) {
  return to === null ? (
    <span className="button quiet faint" aria-hidden="true">
      {sign}
    </span>
  ) : (
    <Link className="button quiet" to={to} aria-label={label}>
      {sign}
    </Link>
  );
}

/** The same axis for every iteration, so that walking through them compares like with like. */
function reach(bins: readonly SeriesBin[]): [number, number] | undefined {
  const lows = bins.map((bin) => finite(bin.min)).filter((value) => value !== null);
  const highs = bins.map((bin) => finite(bin.max)).filter((value) => value !== null);
  return lows.length === 0 ? undefined : [Math.min(...lows), Math.max(...highs)];
}

/** The shared axis, a little wider where the bars' round ends need it; their own where they would be too thin on that. */
function around(domain: readonly [number, number] | undefined, bins: readonly Bin[]): [number, number] | undefined {
  const [first, last] = [bins[0], bins[bins.length - 1]];
  if (domain === undefined || first === undefined || last === undefined) return undefined;
  if (last.high - first.low < 0.4 * (domain[1] - domain[0])) return undefined;
  return [Math.min(domain[0], first.low), Math.max(domain[1], last.high)];
}
