// What the answer about a very long record leaves out, texts and messages: loaded in pieces, where the reader wants them.
import { group } from "d3-array";
import { createContext, useContext, useMemo, useState, type ReactNode } from "react";
import { count, plural } from "../../format";
import { plainText } from "../../parts/text";
import { useSource } from "../../source/source";
import type { CutText, Json, RolloutResponse, TextResponse } from "../../source/schema";

/** So many texts of a message, or of the rest of the record, have a button. */
const LISTED = 5;

interface CutTextsProperties {
  run: string;
  answer: RolloutResponse;
  /** Draws the rollout with the texts that were loaded. */
  children: (answer: RolloutResponse) => ReactNode;
}

interface Cuts {
  run: string;
  id: string;
  /** Those of a message, by its index; -1 for all others. */
  byMessage: ReadonlyMap<number, CutText[]>;
  add: (cut: CutText, piece: TextResponse) => void;
  addMessages: (piece: RolloutResponse) => void;
}

const CutsContext = createContext<Cuts | null>(null);

export function CutTexts({ run, answer, children }: CutTextsProperties) {
  const [parts, setParts] = useState<readonly RolloutResponse[]>([]);
  const [pieces, setPieces] = useState<readonly [CutText, TextResponse][]>([]);
  const joined = useMemo(() => withMessages(answer, parts), [answer, parts]);
  const loaded = useMemo(() => pieces.reduce((before, [cut, piece]) => withPiece(before, cut, piece), joined), [joined, pieces]);
  const cuts = useMemo((): Cuts => {
    const left = loaded.cut.filter((cut) => cut.length > cut.shown);
    const add = (cut: CutText, piece: TextResponse): void => setPieces((before) => [...before, [cut, piece]]);
    const addMessages = (piece: RolloutResponse): void => setParts((before) => [...before, piece]);
    return { run, id: answer.rollout.id, byMessage: group(left, messageOf), add, addMessages };
  }, [run, answer.rollout.id, loaded]);
  if (answer.cut.length === 0 && answer.loaded.length === 1) return <>{children(answer)}</>;
  const inMessages = [...cuts.byMessage].reduce((sum, [message, some]) => sum + (message < 0 ? 0 : some.length), 0);
  return (
    <CutsContext value={cuts}>
      <section className="card rollout-cut" aria-label="Texts that are cut">
        <div className="body small">
          <strong>This record is very long.</strong>
          {inMessages > 0 && <span>{plural(inMessages, "text")} of messages {inMessages === 1 ? "is" : "are"} cut: each message says so, and loads more.</span>}
          {answer.loaded.length > 1 && <span>Only its first and last messages are here: the transcript loads the others.</span>}
          {answer.cut.some((cut) => cut.length === 0) && <span>Token ids are left out.</span>}
          <LoadButtons message={-1} />
        </div>
      </section>
      {children(loaded)}
    </CutsContext>
  );
}

/** The message that a text is of; -1 where it is of none. */
function messageOf({ path }: CutText): number {
  return path[0] === "messages" && typeof path[1] === "number" ? path[1] : -1;
}

/** Buttons that load more of the texts of a message, where they are cut. */
export function LoadButtons({ message }: { message: number }) {
  const cuts = useContext(CutsContext);
  const own = (cuts?.byMessage.get(message) ?? []).slice(0, LISTED);
  return (
    <>
      {own.map((cut) => (
        <LoadButton key={JSON.stringify(cut.path)} run={cuts?.run ?? ""} id={cuts?.id ?? ""} cut={cut} add={(piece) => cuts?.add(cut, piece)} />
      ))}
    </>
  );
}

function LoadButton({ run, id, cut, add }: { run: string; id: string; cut: CutText; add: (piece: TextResponse) => void }) {
  const source = useSource();
  const [state, setState] = useState<"idle" | "loading" | Error>("idle");
  const load = (): void => {
    setState("loading");
    source.ask<TextResponse>("text", { run, id, path: JSON.stringify(cut.path), offset: cut.shown }).then(
      (piece) => {
        add(piece);
        setState("idle");
      },
      (error: Error) => setState(error),
    );
  };
  return (
    <button type="button" className="button" disabled={state === "loading"} onClick={load} title={state instanceof Error ? state.message : "Load the next million characters"}>
      {state instanceof Error ? "Failed, try again: " : "Cut: "}
      {nameOf(cut)} has {count(cut.shown)} of {count(cut.length)} characters here. Load more
    </button>
  );
}

/** In place of messages that are not in the page: a button that loads the next ones. */
export function LoadMessages({ first, end }: { first: number; end: number }) {
  const source = useSource();
  const cuts = useContext(CutsContext);
  const [state, setState] = useState<"idle" | "loading" | Error>("idle");
  const load = (): void => {
    setState("loading");
    source.ask<RolloutResponse>("rollout", { run: cuts?.run, id: cuts?.id, first }).then((piece) => cuts?.addMessages(piece), setState);
  };
  return (
    <p className="transcript-remark small">
      <button type="button" className="button" disabled={state === "loading"} onClick={load} title={state instanceof Error ? state.message : "Load the next two thousand messages"}>
        {state instanceof Error ? "Failed, try again: " : ""}
        {plural(end - first, "message")}, #{first} to #{end - 1}, {end - first === 1 ? "is" : "are"} not loaded. Load more
      </button>
    </p>
  );
}

/** Such as `content`, or outside of messages `steps[0].raw`. */
const nameOf = (cut: CutText): string => plainText((messageOf(cut) < 0 ? cut.path : cut.path.slice(2)).map((name, place) => (typeof name === "number" ? `[${name}]` : place === 0 ? name : `.${name}`)).join(""), 80);

/** The answer with the messages of further ones, each at its index. */
function withMessages(answer: RolloutResponse, parts: readonly RolloutResponse[]): RolloutResponse {
  const count = answer.loaded.at(-1)?.[1] ?? 0;
  if (answer.rollout.messages.length === count) return answer;
  const messages: RolloutResponse["rollout"]["messages"] = [];
  messages.length = count; // with holes, which are not loaded yet
  for (const { rollout, loaded } of [...parts, answer]) {
    const places = loaded.flatMap(([first, end]) => Array.from({ length: end - first }, (_, place) => first + place));
    rollout.messages.forEach((message, place) => (messages[places[place] ?? 0] = message));
  }
  return { ...answer, rollout: { ...answer.rollout, messages }, cut: [...answer.cut, ...parts.flatMap((part) => part.cut)] };
}

function withPiece(answer: RolloutResponse, cut: CutText, { text, next }: TextResponse): RolloutResponse {
  const shown = next ?? cut.length;
  const key = JSON.stringify(cut.path);
  return {
    ...answer,
    rollout: appended(answer.rollout as unknown as Json, cut.path, text) as unknown as RolloutResponse["rollout"],
    cut: answer.cut.map((one) => (JSON.stringify(one.path) === key ? { ...one, shown } : one)),
  };
}

/** A copy in which the text at a path goes on. */
function appended(value: Json, [name, ...rest]: CutText["path"], text: string): Json {
  if (name === undefined) return typeof value === "string" ? value + text : value;
  if (Array.isArray(value)) return value.map((one, place) => (place === name ? appended(one, rest, text) : one));
  if (value === null || typeof value !== "object" || !(name in value)) return value;
  return { ...value, [name]: appended(value[name] ?? null, rest, text) };
}
