// What a report carries inside its file: a head as JSON, and packs of answers, which are unpacked when one is asked for.
import type { Selection } from "../source";
import type { FindingsResponse, GroupComparison, GroupResponse, Json, Member, Message, RolloutResponse, RunResponse, RunsResponse, TruncatedMessage } from "../schema";

export interface Head {
  v: 1;
  /** The run's key in every address. */
  run: string;
  selection: Selection;
  answers: { run: RunResponse; runs: RunsResponse; findings: FindingsResponse };
  /** The table of rollouts, column by column. */
  columns: Record<string, Json[]>;
  /** By rollout id, and by group, the pack that holds it. */
  rollouts: Record<string, number>;
  groups: Record<string, number>;
  /** Images by the name of their blob, as data addresses. */
  images: Record<string, string>;
}

interface Pack {
  rollouts: Record<string, RolloutResponse>;
  groups: Record<string, CarriedGroup>;
}

/** A message of a rollout in the same pack: messages are carried once. */
type Reference = readonly [rollout: string, place: number];

export type CarriedExcerpt = Omit<TruncatedMessage, "message"> & { message: Message | Reference };

/** An answer on a group whose messages may be references. */
export type CarriedGroup = Omit<GroupResponse, "group"> & {
  group: Omit<GroupComparison, "shared" | "members"> & {
    shared: CarriedExcerpt[];
    members: (Omit<Member, "messages"> & { messages: CarriedExcerpt[] })[];
  };
};

/** The head of the report that the page stands in; null where it stands on a server. */
export function readHead(): Head | null {
  const block = document.getElementById("report");
  return block === null ? null : (JSON.parse(block.textContent) as Head);
}

const unpacked = new Map<number, Promise<Pack>>();

export function pack(place: number): Promise<Pack> {
  const known = unpacked.get(place);
  if (known !== undefined) return known;
  const reading = unpack(place);
  unpacked.set(place, reading);
  return reading;
}

async function unpack(place: number): Promise<Pack> {
  const block = document.getElementById(`pack-${place}`);
  if (block === null) throw new Error(`The report is damaged: its part ${place} is missing.`);
  const text = atob(block.textContent.trim());
  const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).json()) as Pack;
}
