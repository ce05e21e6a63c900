// The state of a group's page in its address: the selected member, the layout, and the compared pair.
import { useMemo } from "react";
import { changed, useRoute, type Route } from "../../router";
import type { GroupComparison, GroupKey, Member, MemberName } from "../../source/schema";

type View = "columns" | "table";

export interface GroupState {
  view: View;
  /** The member that keys act on; the first where the address names none. */
  selected: Member | undefined;
  /** Whether the address names it. */
  named: boolean;
  /** Two members whose last responses are compared. */
  pair: [Member, Member] | null;
  /** Whether numbers that all members share are shown, too. */
  allNumbers: boolean;
  /** The criterion whose words are unfolded. */
  criterion: string | null;
  to: (changes: Partial<Record<"view" | "member" | "compare" | "numbers" | "criterion" | "offset" | "against", string | null>>) => string;
}

/** The member that the one at a place is compared with; null for the reference itself, and for the first of all. */
export function comparedWith(group: GroupComparison, place: number): MemberName | null {
  if (!group.is_against) return group.members[place - 1] ?? group.reference;
  return group.reference?.id === group.members[place]?.id ? null : group.reference;
}

/** The changes of the address that show the previous or next members; null if there are no such members. */
export function neighbouringWindow(group: GroupComparison, by: -1 | 1): { offset: string | null; member: null; compare: null } | null {
  const end = group.offset + group.members.length + group.unreadable;
  if (by < 0 ? group.offset === 0 : end >= group.size) return null;
  const offset = by < 0 ? Math.max(0, group.offset - WINDOW) : end;
  return { offset: offset === 0 ? null : String(offset), member: null, compare: null };
}

/** How many members the server sends at once, unless they are very long. */
const WINDOW = 256;

/** The group that an address means; null where it names none. */
export function keyOf({ parameters }: Route): GroupKey | null {
  const iteration = Number(parameters.get("iteration") ?? "0");
  const group = parameters.get("group");
  if (group === null || !Number.isInteger(iteration)) return null;
  return { split: parameters.get("split") ?? "train", iteration, env: parameters.get("env") ?? "", group };
}

export function useGroupState(members: readonly Member[]): GroupState {
  const route = useRoute();
  return useMemo(() => {
    const byId = new Map(members.map((member) => [member.id, member]));
    const named = byId.get(route.parameters.get("member") ?? "");
    const [first, second] = (route.parameters.get("compare") ?? "").split(",").map((id) => byId.get(id));
    return {
      view: route.parameters.get("view") === "table" ? "table" : "columns",
      selected: named ?? members[0],
      named: named !== undefined,
      pair: first !== undefined && second !== undefined && first !== second ? [first, second] : null,
      allNumbers: route.parameters.get("numbers") === "all",
      criterion: route.parameters.get("criterion"),
      to: (changes) => changed(route, changes),
    };
  }, [route, members]);
}
