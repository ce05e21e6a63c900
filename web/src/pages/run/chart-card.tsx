// The card around a chart: title, readout, chart or table, and legend.
import type { ReactNode } from "react";
import { useHoveredIteration } from "../../charts/hovered-iteration";
import { iterationsOf } from "../../charts/ticks";
import { Link } from "../../router";
import type { Selection } from "./selection";

interface Properties {
  /** Names it in the address. */
  name: string;
  title: ReactNode;
  selection: Selection;
  controls?: ReactNode;
  readout: ReactNode;
  table: ReactNode;
  legend?: ReactNode;
  children: ReactNode;
}

export function ChartCard({ name, title, selection, controls, readout, table, legend, children }: Properties) {
  const tables = selection.route.parameters.getAll("table");
  const asTable = tables.includes(name);
  const other = asTable ? tables.filter((one) => one !== name) : [...tables, name];
  return (
    <section className={`card chart-card ${name}`} aria-labelledby={`chart-${name}`}>
      <header>
        <h2 id={`chart-${name}`}>{title}</h2>
        <div className="row wrap">
          {controls}
          <Link className="button quiet small" to={selection.with({ table: other })} aria-label={asTable ? `Chart of ${name}` : `Numbers of ${name} as a table`}>
            {asTable ? "Chart" : "Table"}
          </Link>
        </div>
      </header>
      <div className="body">
        {asTable ? (
          table
        ) : (
          <>
            {readout}
            {children}
            {legend}
          </>
        )}
      </div>
    </section>
  );
}

interface ReadoutProperties<Row> {
  bins: readonly Row[];
  chosen: number | null;
  children: (bin: Row) => ReactNode;
}

/** The numbers of the hovered iteration, else of the selected one, else of the last. */
export function Readout<Row extends { first: number; last: number }>({ bins, chosen, children }: ReadoutProperties<Row>) {
  const at = useHoveredIteration() ?? chosen;
  const bin = bins.find((one) => at !== null && one.first <= at && at <= one.last) ?? bins[bins.length - 1];
  return (
    <p className="chart-readout small" data-readout={bin?.first}>
      {bin === undefined ? null : (
        <>
          <b>{iterationsOf(bin)}</b>
          {children(bin)}
        </>
      )}
    </p>
  );
}

/** A number of a readout, with its name. */
export function Value({ name, children, className = "" }: { name: string; children: ReactNode; className?: string }) {
  return (
    <span className={`readout-value ${className}`}>
      <span className="faint">{name}</span> {children}
    </span>
  );
}

/** Whether the axis of a stacked chart ends above its coloured parts. */
export const isZoomed = (selection: Selection, name: string): boolean => selection.route.parameters.getAll("close").includes(name);

export function ZoomLink({ name, selection }: { name: string; selection: Selection }) {
  const close = selection.route.parameters.getAll("close");
  const now = close.includes(name);
  return (
    <Link className="button quiet small" to={selection.with({ close: now ? close.filter((one) => one !== name) : [...close, name] })}>
      {now ? "0–100 %" : "Zoom in"}
    </Link>
  );
}
