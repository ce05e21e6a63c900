// One message by itself, folded where it is long.
import { useCallback, useMemo, useState, type ReactNode } from "react";
import { plural } from "../format";
import type { Message } from "../source/schema";
import { MessageBlock } from "./message-block";
import { blocksOf, type CallDetails } from "./message-blocks";
import { MessageHead, roleClass } from "./message-head";
import "./message.css";

interface MessageProperties {
  run: string;
  message: Message;
  /** How many characters of its text were left out before it came here. */
  cut?: number;
  /** What is known about its tool calls, in their order. */
  calls?: readonly CallDetails[];
  /** What to mark in its text. */
  find?: string;
  /** Stands beside the role. */
  aside?: ReactNode;
}

export function MessageView({ run, message, cut = 0, calls, find = "", aside }: MessageProperties) {
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  const toggle = useCallback((fold: string) => setOpened((before) => toggled(before, fold)), []);
  const blocks = useMemo(() => blocksOf(message, { key: "message", opened, ...(calls === undefined ? {} : { calls }) }), [message, opened, calls]);
  return (
    <article className={`message ${roleClass(message.role)}`}>
      <MessageHead message={message}>{aside}</MessageHead>
      {blocks.map((block) => (
        <MessageBlock key={block.key} run={run} block={block} toggle={toggle} find={find} />
      ))}
      {cut > 0 && <p className="message-block small faint">{plural(cut, "character")} more, not shown here</p>}
    </article>
  );
}

/** A set with one member more, or less where it was there. */
export function toggled(set: ReadonlySet<string>, member: string): ReadonlySet<string> {
  const changed = new Set(set);
  if (!changed.delete(member)) changed.add(member);
  return changed;
}
