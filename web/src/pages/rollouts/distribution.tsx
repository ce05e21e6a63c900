// The histogram of a measure over the listed rollouts, in which a range can be selected.
import { RangeHistogram, type ValueRange } from "../../charts/range-histogram";
import { plural } from "../../format";
import { plainText } from "../../parts/text";
import { Answered } from "../../parts/states";
import type { HistogramResponse, Measure } from "../../source/schema";
import { useSource } from "../../source/source";
import { useAnswer } from "../../source/use-answer";
import { boundsOf, capital, exchanged } from "./filters";
import { isNarrowed, selectionOf, useListing } from "./listing";
import { rangeFilters } from "./number-filter";

/** The most bins; reports are made for this number. */
const BINS = 64;

/** The range that is chosen does not change the distribution: it is marked in it. A report has one distribution, of all its rollouts. */
function useHistogram(run: string, measure: string) {
  const { live } = useSource();
  const { listing } = useListing();
  const others = { ...listing, filters: listing.filters.filter((one) => one.column !== measure) };
  const answer = useAnswer<HistogramResponse>("histogram", { run, measure, bins: BINS, ...(live ? selectionOf(others) : {}) });
  return { answer, isOfAll: !live && (isNarrowed(others) || listing.retried) };
}

interface DistributionProperties {
  run: string;
  measure: string;
  label: string;
  small?: boolean;
}

export function Distribution({ run, measure, label, small = false }: DistributionProperties) {
  const { listing, change } = useListing();
  const { answer } = useHistogram(run, measure);
  const bounds = boundsOf(listing.filters, measure);
  const range: ValueRange = { min: numberOf(bounds.min), max: numberOf(bounds.max), inclusive: bounds.inclusive };
  const choose = ({ min, max, inclusive }: ValueRange, options: { replace: boolean }): void =>
    change({ filters: exchanged(listing.filters, measure, rangeFilters(min === null ? "" : String(min), max === null ? "" : String(max), inclusive)) }, options);
  if (answer.error !== null && answer.data === undefined) return null; // the table shows the error
  return (
    <Answered of={answer} loading={<div className="skeleton" style={{ height: small ? 66 : 78 }} />}>
      {(histogram) =>
        histogram.bins.length === 0 ? (
          <p className="small faint rollouts-without">No rollout that is listed has this number.</p>
        ) : (
          <RangeHistogram key={histogram.measure} bins={histogram.bins} range={range} label={label} height={small ? 48 : 60} choose={choose} />
        )
      }
    </Answered>
  );
}

/** The distribution above the table, of a measure to choose. */
export function DistributionCard({ run, measures }: { run: string; measures: readonly Measure[] }) {
  const { listing, change } = useListing();
  const { measure } = listing;
  const source = useSource();
  const {
    answer: { data },
    isOfAll,
  } = useHistogram(run, measure);
  const offered = measures.filter(({ name }) => source.has("histogram", { measure: name, bins: BINS }));
  const notes = [
    isOfAll && "All rollouts of this report, unfiltered",
    data !== undefined && data.missing > 0 && `${plural(data.missing, "rollout")} without`,
    data !== undefined && data.non_finite > 0 && `${data.non_finite} not finite`,
  ];
  const label = plainText(measures.find((one) => one.name === measure)?.label ?? measure);
  return (
    <section className="card rollouts-distribution" aria-label={`Distribution of ${label}`}>
      <div className="row wrap spread">
        <label className="row">
          <span className="only-heard">Distribution of</span>
          <select className="field" value={measure} onChange={(event) => change({ measure: event.target.value })}>
            {!offered.some((one) => one.name === measure) && <option value={measure}>{label}</option>}
            {offered.map((one) => (
              <option key={one.name} value={one.name}>
                {plainText(capital(one.label))}
              </option>
            ))}
          </select>
        </label>
        <p className="small faint">{notes.filter(Boolean).join(" · ")}</p>
      </div>
      <Distribution run={run} measure={measure} label={label} />
    </section>
  );
}

function numberOf(text: string | null): number | null {
  const value = text === null || text.trim() === "" ? NaN : Number(text);
  return Number.isFinite(value) ? value : null;
}
