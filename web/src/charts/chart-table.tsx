// The numbers behind a chart as a table, for those who cannot see it or want them exact.
import "./charts.css";

interface Properties {
  caption: string;
  columns: readonly string[];
  rows: readonly { to: string; cells: readonly Cell[] }[];
}
/** A text, or one that leads to what it counts. */
export type Cell = string | { text: string; to: string };

/** A cell that leads to what it counts, where that is anything. */
export const linkedCell = (text: string, n: number, to: string): Cell => (n > 0 ? { text, to } : text);

/** The first cell of a row is what it is about, and leads there. */
export function ChartTable({ caption, columns, rows }: Properties) {
  return (
    <div className="chart-table" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption className="only-heard">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column} scope="col">
                <bdi>{column}</bdi>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.to}>
              {row.cells.map((cell, place) =>
                place === 0 ? (
                  <th key={place} scope="row">
                    <a href={row.to}>{textOf(cell)}</a>
                  </th>
                ) : (
                  <td key={place} className="number">
                    {typeof cell === "string" ? cell : <a href={cell.to}>{cell.text}</a>}
                  </td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const textOf = (cell: Cell | undefined): string => (typeof cell === "object" ? cell.text : (cell ?? ""));
