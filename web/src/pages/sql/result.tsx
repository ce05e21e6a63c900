// What a statement gave: its rows, how many and how fast, or what the server says against it.
import type { UseQueryResult } from "@tanstack/react-query";
import { plural, seconds } from "../../format";
import { CopyButton } from "../../parts/copy-button";
import { Said } from "../../parts/said";
import { Empty, Loading } from "../../parts/states";
import type { SqlResponse } from "../../source/schema";
import { asCsv, asJson } from "./copies";
import { ResultTable } from "./result-table";

interface ResultProperties {
  run: string;
  asked: string;
  answer: UseQueryResult<SqlResponse, Error>;
  /** Asks for more rows; null where there are no more to be had. */
  more: (() => void) | null;
}

export function Result({ run, asked, answer, more }: ResultProperties) {
  const { data, error, isFetching } = answer;
  return (
    <section className="card sql-result" aria-label="Result" aria-busy={isFetching}>
      {asked === "" ? (
        <Empty title="Nothing was asked yet">Write a statement, or start from an example.</Empty>
      ) : error !== null ? (
        <div className="sql-error" role="alert">
          <h2>The statement was not answered</h2>
          <div className="mono">
            <Said text={error.message} label="message" />
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
