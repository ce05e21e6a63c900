// The numbers of all members by name, for comparison.
import { finite, memberNumber } from "../../format";
import type { Float, Member } from "../../source/schema";

/** A number that members have, or may lack. */
export interface Row {
  name: string;
  /** In the order of the members; undefined where one has none. */
  values: (Float | null | undefined)[];
  /** Whether they are not all the same; a member that has no such numbers at all, because it failed, makes no difference. */
  differs: boolean;
  /** The least and the greatest finite value; null if there is no finite value. */
  extent: readonly [low: number, high: number] | null;
}

/** One row for each name that a member has, in the order in which they come. */
export function rowsOf(members: readonly Member[], numbers: (member: Member) => Record<string, Float | null>): Row[] {
  const all = members.map((member) => new Map(Object.entries(numbers(member))));
  const names = [...new Set(all.flatMap((one) => [...one.keys()]))];
  return names.map((name) => {
    const values = all.map((one) => one.get(name));
    const known = values.filter((_, place) => (all[place]?.size ?? 0) > 0);
    return { name, values, differs: known.some((value) => value !== known[0]), extent: extentOf(values) };
  });
}

function extentOf(values: Row["values"]): Row["extent"] {
  const known = values.map((value) => finite(value)).filter((value) => value !== null);
  return known.length === 0 ? null : [Math.min(...known), Math.max(...known)];
}

/** What rewards are the sum of, each term once. */
export const termRows = (members: readonly Member[]): Row[] =>
  rowsOf(members, (member) => Object.fromEntries(member.terms.map((term) => [term.name, term.value])));

/** How a member is called on the page. */
export function nameOf(member: Pick<Member, "index" | "episode" | "seat">): string {
  return member.seat === null ? memberNumber(member.index) : `${memberNumber(member.index)} · seat ${member.seat}`;
}
