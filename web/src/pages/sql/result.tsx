// The result of a statement: rows, count and time, or the error.
import type { UseQueryResult } from "@tanstack/react-query";
import { plural, seconds } from "../../format";
import { CopyButton } from "../../parts/copy-button";
import { Empty, Loading } from "../../parts/states";
import { LongText } from "../../parts/text";
import type { Json, SqlResponse } from "../../source/schema";
import { ResultTable } from "./result-table";

interface ResultProperties {
  run: string;
  asked: string;
  answer: UseQueryResult<SqlResponse, Error>;
  /** Requests more rows; null if there are no more. */
  more: (() => void) | null;
}

export function Result({ run, asked, answer, more }: ResultProperties) {
  const { data, error, isFetching } = answer;
  return (
    <section className="card sql-result" aria-label="Result" aria-busy={isFetching}>
      {asked === "" ? (
        <Empty title="No statement was run yet">Write a statement, or start from an example.</Empty>
      ) : error !== null ? (
        <div className="sql-error" role="alert">
          <h2>The statement failed</h2>
          <div className="mono">
            <LongText text={error.message} label="message" />
          </div>
        </div>
      ) : data === undefined ? (
        <div className="sql-waiting">
          <Loading lines={8} />
        </div>
      ) : (
        <>
          <header>
            <p role="status">
              {plural(data.rows.length, "row")}
              <span className="faint"> · {seconds(data.seconds)}</span>
              {data.more && <span className="warn"> · there are more</span>}
            </p>
            <div className="row wrap">
              {data.more && more !== null && (
                <button type="button" className="button" onClick={more}>
                  More rows
                </button>
              )}
              <CopyButton text={() => asCsv(data)} what="the rows as CSV">
                CSV
              </CopyButton>
              <CopyButton text={() => asJson(data)} what="the rows as JSON">
                JSON
              </CopyButton>
            </div>
          </header>
          <ResultTable key={answer.dataUpdatedAt} run={run} answer={data} />
        </>
      )}
    </section>
  );
}

/** As RFC 4180 has it; null is an empty field, and text that is empty is quoted. */
function asCsv({ columns, rows }: SqlResponse): string {
  return [columns.map((column) => field(column.name)), ...rows.map((row) => row.map(field))].map((line) => `${line.join(",")}\r\n`).join("");
}

/** One object a row. Where columns share a name, each row is a list. */
function asJson({ columns, rows }: SqlResponse): string {
  const names = columns.map((column) => column.name);
  if (new Set(names).size < names.length) return JSON.stringify(rows, null, 2);
  return JSON.stringify(
    rows.map((row) => Object.fromEntries(names.map((name, place) => [name, row[place] ?? null]))),
    null,
    2,
  );
}

function field(value: Json): string {
  if (value === null) return "";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text === "" || /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
