// What a view shows instead of its content: loading, nothing there, or why it cannot be shown.
import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { AnswerError } from "../source/source";

export function Loading({ lines = 4, height = 18 }: { lines?: number; height?: number }) {
  return (
    <div className="stack" role="status" aria-label="Loading" style={{ gap: 10 }}>
      {Array.from({ length: lines }, (_, line) => (
        <div key={line} className="skeleton" style={{ height, width: `${96 - ((line * 23) % 41)}%` }} />
      ))}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="state">
      <h2>{title}</h2>
      {children !== undefined && <div className="long-text">{children}</div>}
    </div>
  );
}

export function Failed({ error, retry }: { error: Error; retry?: () => void }) {
  return (
    <div className="state" role="alert">
      <h2>{error instanceof AnswerError && error.status === 404 ? "Not found" : "This could not be shown"}</h2>
      <p className="long-text">{error.message}</p>
      {retry !== undefined && (
        <button type="button" className="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** The content if the answer is there, else a loading or error state. If a later request fails, the old answer stays, with a note. */
export function Answered<Answer>({ of, children, loading }: { of: UseQueryResult<Answer, Error>; children: (answer: Answer) => ReactNode; loading?: ReactNode }) {
  if (of.data !== undefined)
    return (
      <>
        {of.error !== null && (
          <p className="small bad" role="alert">
            Not up to date: {of.error.message}
          </p>
        )}
        {children(of.data)}
      </>
    );
  if (of.error !== null) return <Failed error={of.error} retry={() => void of.refetch()} />;
  return <>{loading ?? <Loading />}</>;
}
