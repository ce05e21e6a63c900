// Text that a run did not keep: its length and its hash stand in its place.

interface HashedText {
  length: number;
  hash: string;
}

/** What stands for a text of which only a hash was recorded; null for any other text. */
export function hashedText(text: string): HashedText | null {
  const match = text.length < 64 ? /^hashed:(\d+):([0-9a-f]{16})$/.exec(text) : null;
  return match === null ? null : { length: Number(match[1]), hash: match[2] ?? "" };
}
