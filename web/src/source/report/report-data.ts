// The data inside a report: a head as plain JSON, and compressed blocks, each unpacked when it is needed.
import type { Parameters, Selection } from "../source";
import type { FindingsResponse, GroupComparison, GroupResponse, Json, Member, Message, RolloutResponse, RunResponse, RunsResponse, TruncatedMessage } from "../schema";

export interface Head {
  /** The run's key in every address. */
  run: string;
  selection: Selection;
  answers: { run: RunResponse; runs: RunsResponse; findings: FindingsResponse };
  /** The questions whose answers are in the block `statistics`, in the same order. */
  statistics: { question: string; parameters: Parameters }[];
  /** The number of the pack that holds a rollout, by its id. */
  rollouts: Record<string, number>;
  /** The number of the pack that holds a group, by its key. */
  groups: Record<string, number>;
  /** Images as data URLs, by the name of their blob. */
  images: Record<string, string>;
}

/** The blocks by name: the answers to the head's questions, the table of rollouts by column, and packs of groups. */
interface Blocks {
  statistics: unknown[];
  table: Record<string, Json[]>;
  [pack: `pack-${number}`]: Pack;
}

interface Pack {
  rollouts: Record<string, RolloutResponse>;
  groups: Record<string, StoredGroup>;
}

/** A message of a rollout, which may be in another pack: each message is stored once. */
type MessageReference = readonly [rollout: string, index: number];

type StoredExcerpt = Omit<TruncatedMessage, "message"> & { message: Message | MessageReference };

/** An answer about a group whose messages may be references. */
type StoredGroup = Omit<GroupResponse, "group"> & {
  group: Omit<GroupComparison, "shared" | "members"> & {
    shared: StoredExcerpt[];
    members: (Omit<Member, "messages"> & { messages: StoredExcerpt[] })[];
  };
};

/** The head of the report that holds this page; null if the page comes from a server. */
export function readHead(): Head | null {
  const element = document.getElementById("report");
  return element === null ? null : (JSON.parse(element.textContent) as Head);
}

const unpacked = new Map<keyof Blocks, Promise<unknown>>();

export function readBlock<Name extends keyof Blocks>(name: Name): Promise<Blocks[Name]> {
  const block = unpacked.get(name) ?? unpack(name);
  unpacked.set(name, block);
  return block as Promise<Blocks[Name]>;
}

async function unpack(name: string): Promise<unknown> {
  const element = document.getElementById(name);
  if (element === null) throw new Error(`The report is damaged: its block ${name} is missing.`);
  const text = atob(element.textContent.trim());
  const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/** The answer about a group with its messages in place of the references; `read` reads a rollout. */
export async function withMessages({ group, ...answer }: StoredGroup, read: (id: string) => Promise<RolloutResponse>): Promise<GroupResponse> {
  const resolve = async ({ message, ...rest }: StoredExcerpt): Promise<TruncatedMessage> => {
    if (!isReference(message)) return { ...rest, message };
    const [id, index] = message;
    const whole = (await read(id)).rollout.messages[index];
    if (whole === undefined) throw new Error(`The report is damaged: message ${index} of rollout ${id} is missing.`);
    return { ...rest, message: whole };
  };
  const members = group.members.map(async (member) => ({ ...member, messages: await Promise.all(member.messages.map(resolve)) }));
  return { ...answer, group: { ...group, shared: await Promise.all(group.shared.map(resolve)), members: await Promise.all(members) } };
}

// `Array.isArray` does not narrow a union with a readonly array.
const isReference = (message: StoredExcerpt["message"]): message is MessageReference => Array.isArray(message);
