// Draws one block of a message.
import { memo } from "react";
import { plural, seconds, short } from "../format";
import { Badge } from "./badge";
import { CopyButton } from "./copy-button";
import { JsonTree } from "./json-tree";
import type { Block } from "./message-blocks";
import { MessagePart } from "./message-part";
import { VisibleText } from "./text";
import { TextPiece } from "./text-piece";

interface MessageBlockProperties {
  run: string;
  block: Block;
  toggle: (fold: string) => void;
  find?: string;
}

export const MessageBlock = memo(function MessageBlock({ run, block, toggle, find = "" }: MessageBlockProperties) {
  const place = `message-block ${block.kind}${block.inside ? " inside" : ""}`;
  switch (block.kind) {
    case "label":
      return (
        <div className={`${place} ${block.tone}`}>
          <bdi>
            <VisibleText text={block.text.slice(0, 200)} />
          </bdi>
        </div>
      );
    case "text":
      return (
        <div className={`${place} ${block.channel}${block.from === 0 ? " beginning" : ""}`}>
          {block.text === "" && block.from === 0 ? <span className="faint">empty</span> : <TextPiece text={block.text} mono={block.mono} find={find} />}
        </div>
      );
    case "fold":
      return (
        <div className={`${place} ${block.channel}`}>
          <button type="button" className="link" onClick={() => toggle(block.fold)} aria-expanded={block.open}>
            {block.open ? "Fold" : `Show ${plural(block.hidden, "more character").replace(/^[\d,]{6,}/, short(block.hidden))}`}
          </button>
        </div>
      );
    case "part":
      return (
        <div className={place}>
          <MessagePart run={run} part={block.part} />
        </div>
      );
    case "call":
      return <CallHead place={place} block={block} />;
    case "answer":
      return (
        <div className={place}>
          <span className="faint">answer{block.message.tool_call_id ? "" : ", by its order"}</span>
          <CopyButton text={block.message.content} what="the answer" />
        </div>
      );
    case "problem":
      return (
        <div className={`${place} bad`}>
          <TextPiece text={block.text.slice(0, 4_000)} find={find} />
        </div>
      );
    case "other":
      return (
        <div className={place}>
          <JsonTree value={block.value} label="other fields" />
        </div>
      );
  }
});

function CallHead({ place, block }: { place: string; block: Extract<Block, { kind: "call" }> }) {
  const { call, details } = block;
  const failed = details.failure !== null || Boolean(call.error);
  return (
    <div className={place}>
      <span className="message-call-mark" aria-hidden="true">
        ƒ
      </span>
      <span className="only-heard">Tool call</span>
      <bdi className="mono message-call-name">{call.name === "" ? <i>without a name</i> : <VisibleText text={call.name.slice(0, 300)} />}</bdi>
      {details.number !== null && <span className="faint small">call {details.number}</span>}
      {call.id && (
        <bdi className="faint small mono message-call-id">
          <VisibleText text={call.id.slice(0, 60)} />
        </bdi>
      )}
      {details.seconds !== null && <span className="faint small">{seconds(details.seconds)}</span>}
      {failed && <Badge tone="bad">{call.error ? "could not be read" : "failed"}</Badge>}
    </div>
  );
}
