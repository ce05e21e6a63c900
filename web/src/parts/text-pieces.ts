// Long texts: how much is shown while folded, and the pieces in which the rest is rendered.

/** The kind of a text; each is folded at another length. */
export type Channel = "system" | "content" | "reasoning" | "arguments" | "result" | "raw" | "before";

interface Limit {
  characters: number;
  lines: number;
}

const LIMITS: Record<Channel, Limit> = {
  system: { characters: 200, lines: 2 },
  content: { characters: 4_000, lines: 60 },
  reasoning: { characters: 800, lines: 8 },
  arguments: { characters: 1_500, lines: 24 },
  result: { characters: 1_500, lines: 16 },
  raw: { characters: 4_000, lines: 60 },
  before: { characters: 800, lines: 8 },
};

/** A piece is small enough to be laid out at once, so that only those in sight cost anything. */
const PIECE: Limit = { characters: 2_500, lines: 40 };

interface Piece {
  /** Where it begins in the text, and where what follows begins: a line feed between two pieces is in neither. */
  from: number;
  text: string;
}

/** How many characters of a text are shown while it is folded; all of them where it is short. */
export function foldedLength(text: string, channel: Channel): number {
  const limit = LIMITS[channel];
  const end = reach(text, 0, limit);
  // A fold that hides next to nothing costs more than it saves.
  return text.length - end <= Math.min(120, limit.characters / 4) && lines(text, end) <= 2 ? text.length : end;
}

/** The first `length` characters of a text, in pieces. */
export function pieces(text: string, length = text.length): Piece[] {
  const found: Piece[] = [];
  let from = 0;
  while (from < length) {
    const end = Math.min(reach(text, from, PIECE), length);
    const atLine = end < length && text[end] === "\n";
    found.push({ from, text: text.slice(from, end) });
    from = atLine ? end + 1 : end;
  }
  return found.length > 0 ? found : [{ from: 0, text: "" }];
}

/** Whether a text is laid out in columns, as code, tables and boards are, and needs letters of one width. */
export function isLaidOut(text: string): boolean {
  const head = text.slice(0, 4_000);
  if (head.includes("```")) return true;
  const columns = head.split("\n").filter((line) => /^( {2,}|\t)\S|\S( {3,}|\t)\S|^[\s|+\-=_#.:]*[|+=#][-|+=_#.\s\w]*[|+=#][\s|]*$| \| /.test(line));
  return columns.length >= 2;
}

/** Where a stretch that keeps to the limit ends: at a line's end where one is near, never within a surrogate pair. */
function reach(text: string, from: number, limit: Limit): number {
  const furthest = Math.min(text.length, from + limit.characters);
  let end = from;
  for (let line = 0; line < limit.lines; line += 1) {
    const next = text.indexOf("\n", end);
    if (next < 0 || next >= furthest) {
      if (furthest === text.length) return text.length;
      const tooShort = end - from < limit.characters / 2;
      return tooShort ? unsplit(text, furthest) : end - 1;
    }
    end = next + 1;
  }
  return end - 1;
}

function unsplit(text: string, end: number): number {
  const last = text.charCodeAt(end - 1);
  return last >= 0xd800 && last <= 0xdbff && end > 1 ? end - 1 : end;
}

function lines(text: string, from: number): number {
  let count = 0;
  for (let place = text.indexOf("\n", from); place >= 0 && count < 10; place = text.indexOf("\n", place + 1)) count += 1;
  return count;
}
