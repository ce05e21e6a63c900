// Text that a run did not keep: its length and its hash stand in its place.

interface Withheld {
  length: number;
  hash: string;
}

/** What stands for a text that was withheld; null for any other text. */
export function withheld(text: string): Withheld | null {
  const match = text.length < 64 ? /^withheld:(\d+):([0-9a-f]{16})$/.exec(text) : null;
  return match === null ? null : { length: Number(match[1]), hash: match[2] ?? "" };
}
