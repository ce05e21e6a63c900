// How a measure is distributed over what is listed, and a range of it to list.
import { useMemo } from "react";
import { RangeHistogram, type ValueRange } from "../../charts/range-histogram";
import { plural } from "../../format";
import { plain } from "../../parts/plain";
import { Answered } from "../../parts/states";
import type { HistogramResponse, Measure } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";
import { boundsOf, capital, exchanged } from "./filters";
import { selectionOf, useListing } from "./listing";
import { rangeFilters } from "./number-filter";

interface DistributionProperties {
  run: string;
  measure: string;
  label: string;
  small?: boolean;
}

/** The range that is chosen does not narrow what is drawn: it is marked in it. */
export function Distribution({ run, measure, label, small = false }: DistributionProperties) {
  const { listing, change } = useListing();
  const others = useMemo(() => listing.filters.filter((one) => one.column !== measure), [listing.filters, measure]);
  const answer = useAnswer<HistogramResponse>("histogram", { run, measure, bins: small ? 28 : 64, ...selectionOf(listing, others) });
  const bounds = boundsOf(listing.filters, measure);
  const range: ValueRange = { min: numberOf(bounds.min), max: numberOf(bounds.max), inclusive: bounds.inclusive };
  const choose = ({ min, max, inclusive }: ValueRange, options: { replace: boolean }): void =>
    change({ filters: exchanged(listing.filters, measure, rangeFilters(min === null ? "" : String(min), max === null ? "" : String(max), inclusive)) }, options);
  if (answer.error !== null && answer.data === undefined) return null; // the table tells it
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
  const others = listing.filters.filter((one) => one.column !== measure);
  const { data } = useAnswer<HistogramResponse>("histogram", { run, measure, bins: 64, ...selectionOf(listing, others) });
  const label = plain(measures.find((one) => one.name === measure)?.label ?? measure);
  return (
    <section className="card rollouts-distribution" aria-label={`Distribution of ${label}`}>
      <div className="row wrap spread">
        <label className="row">
          <span className="only-heard">Distribution of</span>
          <select className="field" value={measure} onChange={(event) => change({ measure: event.target.value })}>
            {!measures.some((one) => one.name === measure) && <option value={measure}>{label}</option>}
            {measures.map((one) => (
              <option key={one.name} value={one.name}>
                {plain(capital(one.label))}
              </option>
            ))}
          </select>
        </label>
        <p className="small faint">{data === undefined ? "" : [data.missing > 0 && `${plural(data.missing, "rollout")} without`, data.non_finite > 0 && `${data.non_finite} not finite`].filter(Boolean).join(" · ")}</p>
      </div>
      <Distribution run={run} measure={measure} label={label} />
    </section>
  );
}

function numberOf(text: string | null): number | null {
  const value = text === null || text.trim() === "" ? NaN : Number(text);
  return Number.isFinite(value) ? value : null;
}
