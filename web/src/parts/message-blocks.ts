// Splits a message into blocks that are rendered by themselves, so that only visible ones cost time.
import type { Json, Message, Part, ToolCall } from "../source/schema";
import { codeUnits } from "./text";
import { readJson } from "./json-text";
import { type Channel, foldedLength, isLaidOut, pieces } from "./text-pieces";

export type Block = { key: string; inside: boolean } & (
  | { kind: "label"; text: string; tone: "plain" | "reasoning" }
  | { kind: "text"; fold: string; channel: Channel; text: string; from: number; mono: boolean }
  | { kind: "fold"; fold: string; channel: Channel; open: boolean; hidden: number }
  | { kind: "part"; part: Part }
  | { kind: "call"; call: ToolCall; details: CallDetails }
  | { kind: "answer"; message: Message }
  | { kind: "problem"; text: string }
  | { kind: "other"; value: Json }
);

/** Details of a tool call that are not in the call itself. */
export interface CallDetails {
  /** Its number in the rollout, from 1; null outside of a rollout. */
  number: number | null;
  /** The tool's result, if it is shown with the call. */
  answer: Message | null;
  /** Why the tool failed, as the environment says. */
  failure: string | null;
  seconds: number | null;
}

export const NO_DETAILS: CallDetails = { number: null, answer: null, failure: null, seconds: null };

interface BlockOptions {
  /** Begins the keys of all its blocks. */
  key: string;
  /** The texts that are unfolded, by their keys. */
  opened: ReadonlySet<string>;
  calls?: readonly CallDetails[];
}

/** The blocks of a message, in order: reasoning, content with its parts, calls with their answers. */
export function blocksOf(message: Message, options: BlockOptions): Block[] {
  return [...reasoningBlocks(message, options), ...contentBlocks(message, options, false), ...callBlocks(message, options)];
}

function* reasoningBlocks(message: Message, { key, opened }: BlockOptions): Iterable<Block> {
  if (!message.reasoning) return;
  yield { kind: "label", key: `${key}/thinks`, inside: false, text: "Reasoning", tone: "reasoning" };
  yield* textBlocks(`${key}/reasoning`, "reasoning", message.reasoning, opened, false);
}

function* contentBlocks(message: Message, { key, opened }: BlockOptions, inside: boolean): Iterable<Block> {
  const channel: Channel = inside || message.role === "tool" ? "result" : message.role === "system" || message.role === "developer" ? "system" : "content";
  const parts = message.parts ?? [];
  let from = 0;
  for (const [place, part] of parts.entries()) {
    const at = codeUnits(message.content, part.offset ?? 0);
    if (at > from) yield* textBlocks(`${key}/content${from}`, channel, message.content.slice(from, at), opened, inside);
    from = Math.max(from, at);
    if (part.type === "text" && !part.text) continue;
    yield { kind: "part", key: `${key}/part${place}`, inside, part };
    if (part.text) yield* textBlocks(`${key}/part${place}/text`, part.type === "thinking" ? "reasoning" : channel, part.text, opened, inside);
  }
  const rest = message.content.slice(from);
  const silent = (message.tool_calls?.length ?? 0) > 0 || Boolean(message.reasoning) || parts.length > 0;
  if (rest !== "" || !silent) yield* textBlocks(`${key}/content${from}`, channel, rest, opened, inside);
  if (message.other !== undefined && message.other !== null) yield { kind: "other", key: `${key}/other`, inside, value: message.other };
}

function* callBlocks(message: Message, options: BlockOptions): Iterable<Block> {
  for (const [place, call] of (message.tool_calls ?? []).entries()) {
    const key = `${options.key}/call${place}`;
    const details = options.calls?.[place] ?? NO_DETAILS;
    yield { kind: "call", key, inside: false, call, details };
    yield* argumentBlocks(call, key, options.opened);
    if (call.other !== undefined && call.other !== null) yield { kind: "other", key: `${key}/other`, inside: true, value: call.other };
    if (details.failure !== null) yield { kind: "problem", key: `${key}/failure`, inside: true, text: details.failure };
    if (details.answer === null) continue;
    yield { kind: "answer", key: `${key}/answer`, inside: true, message: details.answer };
    yield* contentBlocks(details.answer, { key: `${key}/answer`, opened: options.opened }, true);
  }
}

function* argumentBlocks(call: ToolCall, key: string, opened: ReadonlySet<string>): Iterable<Block> {
  const text = call.arguments ?? "{}";
  const read = call.error ? { text, problem: call.error, fields: null } : readJson(text);
  if (read.fields === null) yield* textBlocks(`${key}/arguments`, "arguments", read.text, opened, true);
  for (const [place, [name, value]] of (read.fields ?? []).entries()) {
    yield { kind: "label", key: `${key}/field${place}`, inside: true, text: name, tone: "plain" };
    yield* textBlocks(`${key}/field${place}/text`, "arguments", value, opened, true);
  }
  if (read.problem !== null) yield { kind: "problem", key: `${key}/problem`, inside: true, text: call.error ? read.problem : `Not JSON: ${read.problem}` };
}

/** The pieces of a text: all of them if it is unfolded, else the first ones; and a fold button. */
export function* textBlocks(fold: string, channel: Channel, text: string, opened: ReadonlySet<string>, inside: boolean): Iterable<Block> {
  const folded = foldedLength(text, channel);
  const open = opened.has(fold);
  const mono = channel === "arguments" || channel === "result" || channel === "raw" || channel === "before" || isLaidOut(text);
  const way = { kind: "fold" as const, inside, fold, channel, open, hidden: text.length - folded };
  // A long unfolded text has a fold button at its top, too.
  if (open && folded < text.length) yield { ...way, key: `${fold}/top` };
  for (const piece of pieces(text, open ? text.length : folded))
    yield { kind: "text", key: `${fold}@${piece.from}`, inside, fold, channel, text: piece.text, from: piece.from, mono };
  if (folded < text.length) yield { ...way, key: `${fold}/fold` };
}
