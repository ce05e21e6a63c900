// One message of a member, with a mark where it first differs from the neighbour's.
import { useCallback, useMemo, useState } from "react";
import { plural } from "../../format";
import { toggled, MessageView } from "../../parts/message";
import { MessageBlock } from "../../parts/message-block";
import { blocksOf, type Block } from "../../parts/message-blocks";
import { MessageHead, roleClass } from "../../parts/message-head";
import { isLaidOut } from "../../parts/text-pieces";
import type { Difference, Message, TruncatedMessage } from "../../source/schema";
import { DifferenceMark, DifferingText } from "./differing-text";

interface GroupMessageProperties {
  run: string;
  excerpt: TruncatedMessage;
  /** Whether all of it is the same as the neighbour's. */
  soft?: boolean;
  /** Where it differs from the neighbour's, where it does. */
  difference?: Difference | null;
  neighbour?: string;
}

export function GroupMessage({ run, excerpt, soft = false, difference = null, neighbour = "" }: GroupMessageProperties) {
  if (difference !== null) return <DifferingMessage run={run} excerpt={excerpt} difference={difference} neighbour={neighbour} />;
  return (
    <div className={soft ? "group-soft" : undefined}>
      <MessageView run={run} message={excerpt.message} cut={excerpt.omitted} />
    </div>
  );
}

interface DifferingMessageProperties {
  run: string;
  excerpt: TruncatedMessage;
  difference: Difference;
  neighbour: string;
}

function DifferingMessage({ run, excerpt, difference, neighbour }: DifferingMessageProperties) {
  const { message, omitted } = excerpt;
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  const toggle = useCallback((fold: string) => setOpened((before) => toggled(before, fold)), []);
  const blocks = useMemo(() => blocksOf(message, { key: "message", opened }), [message, opened]);
  const text = textOf(message, difference);
  const own = blocks.filter((block) => isOf(block, difference));
  const first = own[0];
  return (
    <article className={`message ${roleClass(message.role)}`}>
      <MessageHead message={message}>{difference.field === "role" && <DifferenceMark neighbour={neighbour} words={`another speaker than in ${neighbour}`} />}</MessageHead>
      {blocks.map((block) => {
        if (text === null || !own.includes(block)) return <MessageBlock key={block.key} run={run} block={block} toggle={toggle} />;
        if (block !== first) return null;
        return (
          <div key={block.key} className={`message-block text${block.inside ? " inside" : ""}${difference.field === "reasoning" ? " reasoning" : ""}`}>
            <DifferingText text={text} character={difference.character} isCut={omitted > 0} neighbour={neighbour} mono={block.inside || isLaidOut(text)} />
          </div>
        );
      })}
      {difference.field !== "role" && (text === null || first === undefined) && (
        <div className="message-block">
          <DifferenceMark neighbour={neighbour} words={absent(difference, neighbour)} />
        </div>
      )}
      {omitted > 0 && <p className="message-block small faint">{plural(omitted, "character")} more, not shown here</p>}
    </article>
  );
}

/** The text in which the difference is; null where the message has none there. */
function textOf(message: Message, { field, number }: Difference): string | null {
  if (field === "reasoning") return message.reasoning || null;
  if (field === "content") return message.content || null;
  if (field === "tool_calls") return message.tool_calls?.[number ?? 0] === undefined ? null : (message.tool_calls[number ?? 0]?.arguments ?? "{}");
  return null;
}

/** Whether a block is drawn from that text; texts of parts are between those of the content, and stay. */
function isOf(block: Block, { field, number }: Difference): boolean {
  const key = block.key.slice("message/".length);
  if (field === "reasoning") return key.startsWith("reasoning");
  if (field === "content") return key.startsWith("content");
  return field === "tool_calls" && (key.startsWith(`call${number ?? 0}/arguments`) || key.startsWith(`call${number ?? 0}/field`));
}

function absent({ field }: Difference, neighbour: string): string {
  if (field === "reasoning") return `does not reason here, unlike ${neighbour}`;
  if (field === "tool_calls") return `calls no tool here, unlike ${neighbour}`;
  return field === "parts" ? `has other parts than in ${neighbour}` : `has no text here, unlike ${neighbour}`;
}
