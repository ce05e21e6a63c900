// The events of a transcript in order: each message once, each step before its response, tool results with their calls.
import { NO_DETAILS, type CallDetails } from "../../parts/message-blocks";
import type { Json, Message, Rollout, Step } from "../../source/schema";

type Range = Step["prompt"][number];

export interface TranscriptMessage {
  kind: "message";
  message: Message;
  /** Its place in the record's `messages`; null for an answer that the conversation did not keep. */
  index: number | null;
  /** The step whose answer it is. */
  step: Step | null;
  calls: CallDetails[];
  /** In a tool's answer that is shown by itself, the number of the call. */
  answers: number | null;
}
export interface TranscriptStep {
  kind: "step";
  step: Step;
  /** The sum of rewards up to and with this step. */
  total: number;
}
/** Messages that are not in the page yet. */
interface Unloaded {
  kind: "unloaded";
  first: number;
  /** The index after the last. */
  end: number;
}
interface Remark {
  kind: "remark";
  text: string;
}
export type TranscriptEvent = TranscriptMessage | TranscriptStep | Remark | Unloaded;

export function transcriptEvents(rollout: Rollout): TranscriptEvent[] {
  return paired(listEvents(rollout));
}

/** The messages that some ranges name. */
export function messagesOf(rollout: Rollout, ranges: readonly Range[]): Message[] {
  return ranges.flatMap(([first, last]) => rollout.messages.slice(Math.max(first, 0), last));
}

export function responseOf(rollout: Rollout, step: Step): Message | null {
  return typeof step.response === "number" ? (rollout.messages[step.response] ?? null) : step.response;
}

function listEvents(rollout: Rollout): TranscriptEvent[] {
  const events: TranscriptEvent[] = [];
  const shown = new Set<number>();
  // All messages before this index were shown: a conversation that only grows takes one pass.
  let prefix = 0;
  // What the prompt before held, and its answer.
  let before: Range[] = [];
  let total = 0;
  const show = (index: number, step: Step | null = null) => {
    const message = rollout.messages[index];
    if (message === undefined) {
      const last = events.at(-1);
      if (last?.kind === "unloaded" && last.end === index) last.end += 1;
      else if (index < rollout.messages.length && !shown.has(index)) events.push({ kind: "unloaded", first: index, end: index + 1 });
      shown.add(index);
      return;
    }
    shown.add(index);
    while (shown.has(prefix)) prefix += 1;
    events.push(messageEvent(message, index, step));
  };
  const send = (ranges: readonly Range[], what: string) => {
    const sent = ranges.map(([first, last]): Range => [Math.max(first, 0), Math.min(last, rollout.messages.length)]);
    if (isLeftOut(before, sent)) events.push({ kind: "remark", text: `Here ${what} ${rangesText(ranges)}, and no longer all of the above.` });
    before = sent;
    for (const [first, last] of sent) for (let place = Math.max(first, prefix); place < last; place += 1) if (!shown.has(place)) show(place);
  };
  for (const step of rollout.steps) {
    send(step.prompt, `step ${step.step} was sent`);
    total += typeof step.reward === "number" ? step.reward : Number(step.reward);
    events.push({ kind: "step", step, total });
    if (typeof step.response !== "number") events.push(messageEvent(step.response, null, step));
    else {
      if (!shown.has(step.response) && step.response in rollout.messages) before.push([step.response, step.response + 1]);
      show(step.response, step);
    }
  }
  if (rollout.pending_prompt !== null) {
    send(rollout.pending_prompt, "the policy was sent");
    events.push({ kind: "remark", text: "This was sent to the policy, but no step followed." });
  } else if (rollout.final.length > 0) send(rollout.final, "the conversation ended as");
  const rest = Array.from(rollout.messages.keys()).filter((index) => !shown.has(index));
  if (rest.length > 0) events.push({ kind: "remark", text: "Messages that were in no prompt:" });
  for (const index of rest) show(index);
  return events;
}

function messageEvent(message: Message, index: number | null, step: Step | null): TranscriptMessage {
  return { kind: "message", message, index, step, calls: [], answers: null };
}

/** Whether a place of some ranges is in none of the others. */
function isLeftOut(ranges: readonly Range[], others: readonly Range[]): boolean {
  const sorted = others.toSorted(([one], [other]) => one - other);
  let at = 0;
  let place = 0;
  for (const [first, last] of ranges.toSorted(([one], [other]) => one - other)) {
    place = Math.max(place, first);
    while (place < last) {
      while (at < sorted.length && (sorted[at]?.[1] ?? 0) <= place) at += 1;
      const next = sorted[at];
      if (next === undefined || next[0] > place) return true;
      place = next[1];
    }
  }
  return false;
}

/** Ranges for people, both ends included, as messages are numbered on the page. */
export function rangesText(ranges: readonly Range[]): string {
  const spans = ranges.filter(([first, last]) => last > first).map(([first, last]) => (last - first === 1 ? `${first}` : `${first}–${last - 1}`));
  return spans.length === 0 ? "no message" : `messages ${spans.join(", ")}`;
}

/** Number the calls, and put a tool's answer with its call: by id, else with the first that has none. An answer that was
 * edited is shown once more, by itself; it still answers the call that the first one did. */
function paired(events: TranscriptEvent[]): TranscriptEvent[] {
  const shown: TranscriptEvent[] = [];
  const answered = new Map<string, number>();
  let open: { call: CallDetails; id: string | null; turn: number }[] = [];
  let number = 0;
  let turn = 0;
  for (const event of events) {
    if (event.kind === "step") turn += 1;
    if (event.kind !== "message") {
      shown.push(event);
      continue;
    }
    if (event.message.role === "tool") {
      const wanted = event.message.tool_call_id ?? null;
      const found = open.find((one) => wanted === null || one.id === wanted);
      open = open.filter((one) => one !== found);
      if (wanted !== null && found?.call.number != null) answered.set(wanted, found.call.number);
      // An answer that comes after another turn keeps its own place in the conversation.
      if (found !== undefined && found.turn === turn) {
        found.call.answer = event.message;
        continue;
      }
      event.answers = found?.call.number ?? (wanted === null ? null : (answered.get(wanted) ?? null));
    }
    const facts = toolFacts(event.step);
    event.calls = (event.message.tool_calls ?? []).map((call, place) => ({ ...NO_DETAILS, ...factsOf(facts, call.id ?? null, place), number: ++number }));
    open.push(...event.calls.map((call, place) => ({ call, id: event.message.tool_calls?.[place]?.id ?? null, turn })));
    shown.push(event);
  }
  return shown;
}

/** What an environment with tools notes about each call, in `extra.tool_calls`. */
function toolFacts(step: Step | null): { [key: string]: Json }[] {
  const facts = step?.extra.tool_calls;
  return Array.isArray(facts) ? facts.filter((one): one is { [key: string]: Json } => typeof one === "object" && one !== null && !Array.isArray(one)) : [];
}

function factsOf(facts: { [key: string]: Json }[], id: string | null, place: number): Pick<CallDetails, "failure" | "seconds"> {
  const fact = (id === null ? undefined : facts.find((one) => one.id === id)) ?? (id === null ? facts[place] : undefined);
  const failure = typeof fact?.error === "string" ? fact.error : null;
  return { failure, seconds: typeof fact?.seconds === "number" ? fact.seconds : null };
}
