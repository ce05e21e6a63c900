// Draws one row of the transcript.
import { memo, type ReactNode } from "react";
import { Badge } from "../../parts/badge";
import { FailureBox } from "../../parts/failure";
import { MessageBlock } from "../../parts/message-block";
import { MessageHead, roleClass } from "../../parts/message-head";
import { TextPiece } from "../../parts/text-piece";
import { LoadButtons, LoadMessages } from "./cut-texts";
import type { Row } from "./transcript-rows";

interface TranscriptRowProperties {
  run: string;
  row: Row;
  toggle: (fold: string) => void;
  find?: string;
  /** The rows that only the whole transcript has. */
  step?: (row: Extract<Row, { kind: "step" }>) => ReactNode;
  end?: () => ReactNode;
}

export const TranscriptRow = memo(function TranscriptRow({ run, row, toggle, find = "", step, end }: TranscriptRowProperties) {
  const edge = `message-row ${roleClass(row.role)}`;
  switch (row.kind) {
    case "step":
      return <>{step?.(row)}</>;
    case "head":
      return (
        <div className={`${edge} first`}>
          <MessageHead message={row.event.message}>
            {row.event.index !== null && (
              <span className="tiny faint" title="Its place in the record's messages">
                #{row.event.index}
              </span>
            )}
            {row.event.index === null && (
              <Badge tone="warn" title="The environment edited it or left it out of the conversation">
                not kept
              </Badge>
            )}
            {row.event.index !== null && <LoadButtons message={row.event.index} />}
            {row.event.answers !== null && <span className="small faint">answers call {row.event.answers}</span>}
          </MessageHead>
        </div>
      );
    case "block":
      return (
        <div className={edge}>
          <MessageBlock run={run} block={row.block} toggle={toggle} find={find} />
        </div>
      );
    case "gap":
      return (
        <div className="message-gap">
          <div className={edge} />
        </div>
      );
    case "label":
      return (
        <div className={`${edge} first`}>
          <div className="message-head small faint">{row.text}</div>
        </div>
      );
    case "remark":
      return <p className="transcript-remark small">{row.text}</p>;
    case "unloaded":
      return <LoadMessages first={row.first} end={row.end} />;
    case "parse error":
      return (
        <div className="transcript-problem" role="group" aria-label="Parse error">
          <Badge tone="warn">parse error</Badge> <TextPiece text={row.text.slice(0, 8_000)} find={find} />
        </div>
      );
    case "failure":
      return (
        <div className="transcript-failure">
          <FailureBox error={row.error} />
        </div>
      );
    case "end":
      return <>{end?.()}</>;
  }
});
