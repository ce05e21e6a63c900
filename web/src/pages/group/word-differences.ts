// Which words of two texts are shared, by Myers's shortest edit in linear space, with a bound on the work.

/** A stretch of text that both have, or that only the first or the second has. */
export interface Stretch {
  kind: "same" | "first" | "second";
  text: string;
}

/** How many steps of the search are taken before it is given up: a fraction of a second. */
const MOST_WORK = 30_000_000;
/** Spaces, words, single signs; in scripts that put no spaces between words each character is one. */
const WORDS = /\s+|[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]|[\p{L}\p{N}_]+?(?=[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]|[^\p{L}\p{N}_]|$)|[^\s\p{L}\p{N}_]/gu;

/** The stretches of two texts in order; null if the comparison takes too long. */
export function wordDifferences(first: string, second: string, work = MOST_WORK): Stretch[] | null {
  const left = first.match(WORDS) ?? [];
  const right = second.match(WORDS) ?? [];
  const { ids: a, numbers } = numbered(left, new Map());
  const { ids: b } = numbered(right, numbers);
  const kept = { left: new Uint8Array(a.length), right: new Uint8Array(b.length) };
  const budget = { left: work };
  if (!mark(a, b, 0, a.length, 0, b.length, kept, budget)) return null;
  return smoothed(stretches(left, right, kept));
}

interface Kept {
  left: Uint8Array;
  right: Uint8Array;
}

function numbered(words: readonly string[], numbers: Map<string, number>): { ids: Int32Array; numbers: Map<string, number> } {
  const ids = new Int32Array(words.length);
  words.forEach((word, place) => {
    const known = numbers.get(word) ?? numbers.size;
    numbers.set(word, known);
    ids[place] = known;
  });
  return { ids, numbers };
}

/** Mark the words of a longest common subsequence of a[aFrom, aTo) and b[bFrom, bTo); false where the budget ran out. */
function mark(a: Int32Array, b: Int32Array, aFrom: number, aTo: number, bFrom: number, bTo: number, kept: Kept, budget: { left: number }): boolean {
  while (aFrom < aTo && bFrom < bTo && a[aFrom] === b[bFrom]) {
    kept.left[aFrom++] = 1;
    kept.right[bFrom++] = 1;
  }
  while (aFrom < aTo && bFrom < bTo && a[aTo - 1] === b[bTo - 1]) {
    kept.left[--aTo] = 1;
    kept.right[--bTo] = 1;
  }
  if (aFrom === aTo || bFrom === bTo) return true;
  const middle = middleOf(a.subarray(aFrom, aTo), b.subarray(bFrom, bTo), budget);
  if (middle === null) return false;
  const [x, y] = middle;
  return mark(a, b, aFrom, aFrom + x, bFrom, bFrom + y, kept, budget) && mark(a, b, aFrom + x, aTo, bFrom + y, bTo, kept, budget);
}

/** A point in the middle of a shortest edit, found from both ends at once; null where the budget ran out. */
function middleOf(a: Int32Array, b: Int32Array, budget: { left: number }): [number, number] | null {
  const n = a.length;
  const m = b.length;
  const delta = n - m;
  const most = Math.ceil((n + m) / 2);
  const size = 2 * most + 2;
  const forward = new Int32Array(size);
  const backward = new Int32Array(size);
  const at = (k: number): number => k + most;
  for (let d = 0; d <= most; d += 1) {
    budget.left -= 2 * d + 2;
    if (budget.left < 0) return null;
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && forward[at(k - 1)]! < forward[at(k + 1)]!) ? forward[at(k + 1)]! : forward[at(k - 1)]! + 1;
      while (x < n && x - k < m && a[x] === b[x - k]) x += 1;
      forward[at(k)] = x;
      const other = delta - k;
      if (delta % 2 !== 0 && other > -d && other < d && within(x, x - k, n, m) && x >= n - backward[at(other)]!) return [x, x - k];
    }
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && backward[at(k - 1)]! < backward[at(k + 1)]!) ? backward[at(k + 1)]! : backward[at(k - 1)]! + 1;
      while (x < n && x - k < m && a[n - 1 - x] === b[m - 1 - (x - k)]) x += 1;
      backward[at(k)] = x;
      const other = delta - k;
      if (delta % 2 === 0 && other >= -d && other <= d && within(x, x - k, n, m) && x >= n - forward[at(other)]!) return [n - x, m - (x - k)];
    }
  }
  return null;
}

/** Whether a point is in the grid: the search also walks past its edges. */
const within = (x: number, y: number, n: number, m: number): boolean => x <= n && y >= 0 && y <= m;

function stretches(left: readonly string[], right: readonly string[], kept: Kept): Stretch[] {
  const found: Stretch[] = [];
  const add = (kind: Stretch["kind"], text: string): void => {
    const last = found.at(-1);
    if (last?.kind === kind) last.text += text;
    else found.push({ kind, text });
  };
  let a = 0;
  let b = 0;
  while (a < left.length || b < right.length) {
    while (a < left.length && !kept.left[a]) add("first", left[a++]!);
    while (b < right.length && !kept.right[b]) add("second", right[b++]!);
    while (a < left.length && b < right.length && kept.left[a] && kept.right[b]) {
      add("same", left[a++]!);
      b += 1;
    }
  }
  return found;
}

/** A space or comma that is shared between two changes says nothing: it becomes part of both, so that changes read as phrases. */
function smoothed(found: readonly Stretch[]): Stretch[] {
  const result: Stretch[] = [];
  let first = "";
  let second = "";
  const flush = (): void => {
    if (first) result.push({ kind: "first", text: first });
    if (second) result.push({ kind: "second", text: second });
    first = second = "";
  };
  found.forEach((stretch, place) => {
    if (stretch.kind === "first") first += stretch.text;
    else if (stretch.kind === "second") second += stretch.text;
    else if ((first || second) && place < found.length - 1 && !/[\p{L}\p{N}]/u.test(stretch.text) && stretch.text.length < 4 && !stretch.text.includes("\n")) {
      first += stretch.text;
      second += stretch.text;
    } else {
      flush();
      result.push(stretch);
    }
  });
  flush();
  return result;
}
