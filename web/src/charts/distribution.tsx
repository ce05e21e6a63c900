// A measure over iterations with its distribution: median, the middle half, all but the outer twentieths, and the mean.
import { area, line } from "d3-shape";
import { useCallback, useMemo } from "react";
import { finite } from "../format";
import type { SeriesBin } from "../source/schema";
import { IterationPlot, type Place } from "./iteration-plot";

interface Properties {
  bins: readonly SeriesBin[];
  label: string;
  height?: number;
  mean: boolean;
  chosen?: number | null;
  describe: (index: number) => string;
  to: (index: number) => string;
  /** What a click on a bin does, in words. */
  does: (index: number) => string;
}

export function Distribution({ bins, mean, does, ...frame }: Properties) {
  const domain = useMemo(() => reach(bins, mean), [bins, mean]);
  const { to } = frame;
  const marks = useCallback(
    (place: Place) => (
      <>
        <Band bins={bins} place={place} low={(bin) => finite(bin.q05)} high={(bin) => finite(bin.q95)} className="chart-band wide" />
        <Band bins={bins} place={place} low={(bin) => finite(bin.q25)} high={(bin) => finite(bin.q75)} className="chart-band" />
        <Line bins={bins} place={place} of={(bin) => finite(bin.median)} className="chart-median" />
        {mean && <Line bins={bins} place={place} of={(bin) => finite(bin.mean)} className="chart-mean" />}
        {bins.map((bin, index) => (
          <a key={bin.first} href={to(index)} tabIndex={-1} aria-label={does(index)}>
            <rect className="chart-column" x={index * place.step} width={place.step} height={place.height} />
          </a>
        ))}
      </>
    ),
    [bins, mean, to, does],
  );
  return (
    <IterationPlot bins={bins} domain={domain} {...frame}>
      {marks}
    </IterationPlot>
  );
}

type Value = (bin: SeriesBin) => number | null;

function Band({ bins, place, low, high, className }: { bins: readonly SeriesBin[]; place: Place; low: Value; high: Value; className: string }) {
  const shape = area<SeriesBin>()
    .defined((bin) => low(bin) !== null && high(bin) !== null)
    .x((_, index) => place.x(index))
    .y0((bin) => place.y(low(bin) ?? 0))
    .y1((bin) => place.y(high(bin) ?? 0));
  return <path className={className} d={shape([...bins]) ?? ""} />;
}

function Line({ bins, place, of, className }: { bins: readonly SeriesBin[]; place: Place; of: Value; className: string }) {
  const shape = line<SeriesBin>()
    .defined((bin) => of(bin) !== null)
    .x((_, index) => place.x(index))
    .y((bin) => place.y(of(bin) ?? 0));
  const alone = bins.flatMap((bin, index) => {
    const value = of(bin);
    const apart = [bins[index - 1], bins[index + 1]].every((next) => next === undefined || of(next) === null);
    return value !== null && (apart || bins.length <= 24) ? [{ index, value }] : [];
  });
  return (
    <>
      <path className={className} d={shape([...bins]) ?? ""} />
      {alone.map(({ index, value }) => (
        <circle key={index} className={`${className} dot`} cx={place.x(index)} cy={place.y(value)} r={2.2} />
      ))}
    </>
  );
}

/** From the lowest to the highest value that is drawn, with some room. */
function reach(bins: readonly SeriesBin[], mean: boolean): [number, number] {
  const values = bins.flatMap((bin) => [bin.q05, bin.q95, bin.median, ...(mean ? [bin.mean] : [])]).map(finite).filter((value) => value !== null);
  if (values.length === 0) return [0, 1];
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (low === high) return low === 0 ? [-1, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const room = (high - low) * 0.06;
  // Zero is shown where it is near: a curve far above it would look like one that starts at nothing.
  const floor = low >= 0 && low < (high - low) / 2 ? 0 : low - room;
  return [floor, high <= 0 && high > (low - high) / 2 ? 0 : high + room];
}
