// Finds text in a transcript that is drawn only in part.
import { pattern } from "../../parts/text-piece";
import type { Row } from "./transcript-rows";

export interface Found {
  /** The key of the text that it is in, and where in it. */
  fold: string;
  at: number;
  /** Which of those in the same text it is, from 0. */
  nth: number;
}

export const MOST_FOUND = 5_000;

/** All occurrences of a text, in the order of the transcript; `all` are the rows with every text unfolded. */
export function findAll(all: readonly Row[], find: string): Found[] {
  const found: Found[] = [];
  if (find === "") return found;
  const wanted = pattern(find);
  for (const row of all) {
    if (row.kind !== "block" || row.block.kind !== "text") continue;
    let nth = 0;
    for (const match of row.block.text.matchAll(wanted)) {
      if (found.length >= MOST_FOUND) return found;
      found.push({ fold: row.block.fold, at: row.block.from + match.index, nth: nth++ });
    }
  }
  return found;
}

/** The row of an occurrence; -1 if it is folded. */
export function rowOf(rows: readonly Row[], found: Found): number {
  return rows.findIndex(
    (row) => row.kind === "block" && row.block.kind === "text" && row.block.fold === found.fold && row.block.from <= found.at && found.at < row.block.from + row.block.text.length,
  );
}

/** The keys of all texts that can be unfolded, of one step or of all. */
export function foldsOf(rows: readonly Row[], belongs: (row: Row) => boolean): { fold: string; open: boolean }[] {
  return rows.flatMap((row) => (row.kind === "block" && row.block.kind === "fold" && belongs(row) ? [{ fold: row.block.fold, open: row.block.open }] : []));
}
