// An error: its layer, type, message, and folded traceback.
import type { Failure } from "../source/schema";
import { Badge } from "./badge";
import { CopyButton } from "./copy-button";
import { LongText, VisibleText } from "./text";
import "./failure.css";

export function FailureBox({ error, children }: { error: Failure; children?: React.ReactNode }) {
  return (
    <div className="failure" role="group" aria-label="Error">
      <div className="row wrap">
        <Badge tone="bad" title="The part of the system that it came from">
          <VisibleText text={error.layer.slice(0, 40)} />
        </Badge>
        <bdi className="mono failure-type">
          <VisibleText text={error.type.slice(0, 200)} />
        </bdi>
        {children}
        <span className="failure-acts">
          <CopyButton text={() => [`${error.type}: ${error.message}`, error.traceback ?? ""].join("\n")} what="the error" />
        </span>
      </div>
      {error.message !== "" && <LongText text={error.message} fold={1_000} label="error" />}
      {error.traceback && (
        <details>
          <summary>Traceback</summary>
          <div className="mono failure-traceback">
            <LongText text={error.traceback} label="traceback" />
          </div>
        </details>
      )}
    </div>
  );
}
