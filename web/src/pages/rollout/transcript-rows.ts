// The rows of a transcript, each rendered by itself: step headers, message headers, text blocks, and the end.
import { type Block, blocksOf, textBlocks } from "../../parts/message-blocks";
import type { Failure, Message, Rollout } from "../../source/schema";
import type { TranscriptEvent, TranscriptMessage, TranscriptStep } from "./transcript-events";

export type Row = { key: string; /** The step it belongs to; null before the first. */ step: number | null; role: string } & (
  | { kind: "step"; taken: TranscriptStep; versionChanged: boolean }
  | { kind: "head"; event: TranscriptMessage }
  | { kind: "block"; block: Block }
  | { kind: "gap" }
  | { kind: "remark"; text: string }
  | { kind: "unloaded"; first: number; end: number }
  | { kind: "label"; text: string }
  | { kind: "parse error"; text: string }
  | { kind: "failure"; error: Failure }
  | { kind: "end" }
);

/** Makes the rows of a rollout, and only the changed ones again when texts are unfolded. */
export class RowMaker {
  private readonly folded: Row[][];

  constructor(
    private readonly rollout: Rollout,
    private readonly events: readonly TranscriptEvent[],
  ) {
    this.folded = this.make(new Set());
  }

  rows(opened: ReadonlySet<string>): Row[] {
    if (opened.size === 0) return this.folded.flat();
    const touched = new Set([...opened].map((fold) => fold.split("/", 1)[0]));
    return this.folded.flatMap((rows, place) => (touched.has(eventKey(place)) ? this.again(place, opened) : rows));
  }

  /** All rows, with every text unfolded. */
  unfolded(): Row[] {
    const folds = this.folded.flat().flatMap((row) => (row.kind === "block" && row.block.kind === "fold" ? [row.block.fold] : []));
    return this.rows(new Set(folds));
  }

  private again(place: number, opened: ReadonlySet<string>): Row[] {
    const event = this.events[place];
    const step = this.folded[place]?.[0]?.step ?? null;
    return event === undefined ? this.ending(place, step, opened) : [...eventRows(event, eventKey(place), step, opened, null)];
  }

  private make(opened: ReadonlySet<string>): Row[][] {
    let step: number | null = null;
    let version = this.rollout.policy_version;
    const all = this.events.map((event, place) => {
      if (event.kind === "step") step = event.step.step;
      const before = version;
      if (event.kind === "step") version = event.step.policy_version;
      return [...eventRows(event, eventKey(place), step, opened, before)];
    });
    return [...all, this.ending(all.length, step, opened)];
  }

  /** What came back last where no step resulted, what went wrong, and how it ended. */
  private ending(place: number, step: number | null, opened: ReadonlySet<string>): Row[] {
    const key = eventKey(place);
    const rows: Row[] = [];
    const { pending_raw: raw, error } = this.rollout;
    if (raw !== null) {
      rows.push({ kind: "label", key: `${key}/label`, step, role: "assistant", text: "The last response, which did not become a step" });
      for (const block of textBlocks(`${key}/raw`, "raw", raw, opened, false)) rows.push({ kind: "block", key: block.key, step, role: "assistant", block });
      rows.push({ kind: "gap", key: `${key}/gap`, step, role: "assistant" });
    }
    if (error !== null) rows.push({ kind: "failure", key: `${key}/failure`, step, role: "", error });
    rows.push({ kind: "end", key: `${key}/end`, step, role: "" });
    return rows;
  }
}

const eventKey = (place: number): string => `e${place}`;

function* eventRows(event: TranscriptEvent, key: string, step: number | null, opened: ReadonlySet<string>, version: Rollout["policy_version"]): Iterable<Row> {
  if (event.kind === "step") {
    yield { kind: "step", key, step, role: "", taken: event, versionChanged: event.step.policy_version !== version };
    return;
  }
  if (event.kind === "remark") {
    yield { kind: "remark", key, step, role: "", text: event.text };
    return;
  }
  if (event.kind === "unloaded") {
    yield { kind: "unloaded", key: `unloaded${event.first}`, step, role: "", first: event.first, end: event.end };
    return;
  }
  const { role } = event.message;
  yield { kind: "head", key: `${key}/head`, step, role, event };
  for (const block of blocksOf(event.message, { key, opened, calls: event.calls })) yield { kind: "block", key: block.key, step, role, block };
  yield { kind: "gap", key: `${key}/gap`, step, role };
  if (event.step?.parse_error) yield { kind: "parse error", key: `${key}/parse`, step, role: "", text: event.step.parse_error };
  if (event.step?.raw) yield* rawRows(event.step.raw, key, step, opened);
}

/** The answer before it was parsed, where that differs from what the message says. */
function* rawRows(raw: string, key: string, step: number | null, opened: ReadonlySet<string>): Iterable<Row> {
  yield { kind: "label", key: `${key}/before`, step, role: "assistant", text: "The answer before it was parsed" };
  for (const block of textBlocks(`${key}/raw`, "before", raw, opened, false)) yield { kind: "block", key: block.key, step, role: "assistant", block };
  yield { kind: "gap", key: `${key}/raw/gap`, step, role: "assistant" };
}

/** The rows of messages by themselves, such as those of a prompt. */
export function messageRows(messages: readonly Message[], opened: ReadonlySet<string>): Row[] {
  return messages.flatMap((message, place) => {
    const event: TranscriptMessage = { kind: "message", message, index: place, step: null, calls: [], answers: null };
    return [...eventRows(event, `m${place}`, null, opened, null)];
  });
}

/** About how high a row will be. */
export function rowHeight(row: Row): number {
  if (row.kind === "step") return 52;
  if (row.kind === "head") return 30;
  if (row.kind === "gap") return 12;
  if (row.kind === "failure" || row.kind === "end") return 120;
  if (row.kind !== "block") return 32;
  if (row.block.kind !== "text") return 30;
  const { text } = row.block;
  let lines = Math.ceil(text.length / 95);
  for (let place = text.indexOf("\n"); place >= 0; place = text.indexOf("\n", place + 1)) lines += 1;
  return 2 + 21 * Math.max(1, lines);
}
