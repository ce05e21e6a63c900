// Fetches the rows of a listing in pages around the visible ones.
import { useQueries } from "@tanstack/react-query";
import { useCallback, useEffect, useState } from "react";
import { useSource, type Parameters } from "../../source/source";
import type { RolloutRow, RolloutsResponse } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";
import type { Anchor } from "./use-anchor";

const PAGE = 100;
/** Pages that are passed while the scroll bar is dragged are not requested. */
const SETTLES_AFTER = 90;

export interface Rows {
  /** How many there are; null while that is not known. */
  total: number | null;
  at: (index: number) => RolloutRow | undefined;
  anchorAt: (index: number) => Anchor | undefined;
  /** Whether the rows are those of the previous request. */
  old: boolean;
  /** Whether all rows are up to date. */
  fresh: boolean;
  /** Whether the first answer has not arrived yet. */
  awaited: boolean;
  error: Error | null;
  again: () => void;
}

type FirstPage = ReturnType<typeof useFirstPage>;

/** The first page is always fetched: it has the total. */
export function useFirstPage(question: Parameters) {
  return useAnswer<RolloutsResponse>("rollouts", { ...question, offset: 0, limit: PAGE });
}

/** The rows around those that can be seen: from `top`, without `bottom`. */
export function useRows(question: Parameters, first: FirstPage, top: number, bottom: number): Rows {
  const source = useSource();
  const { data, refetch } = first;
  const pages = useSettled(first.isPlaceholderData ? [] : pagesOf(top, bottom, data?.total ?? 0));
  const others = useQueries({
    queries: pages.map((page) => {
      const parameters = { ...question, offset: page * PAGE, limit: PAGE };
      return {
        queryKey: [String(question.run ?? ""), "rollouts", parameters],
        queryFn: () => source.ask<RolloutsResponse>("rollouts", parameters),
      };
    }),
  });
  const answers = [data, ...others.map((other) => other.data)];
  return {
    total: data?.total ?? null,
    at: (index) => find(answers, index)?.row,
    anchorAt: (index) => {
      const found = find(answers, index);
      return found && { id: found.row.id, index, total: found.total };
    },
    old: first.isPlaceholderData,
    fresh: !first.isPlaceholderData && !first.isFetching && !others.some((other) => other.isFetching),
    awaited: first.isPending || first.isPlaceholderData,
    error: first.error ?? others.find((other) => other.error !== null)?.error ?? null,
    again: useCallback(() => void refetch(), [refetch]),
  };
}

function find(answers: readonly (RolloutsResponse | undefined)[], index: number): { row: RolloutRow; total: number } | undefined {
  for (const answer of answers) {
    const row = answer?.rows[index - answer.offset];
    if (answer !== undefined && row !== undefined) return { row, total: answer.total };
  }
  return undefined;
}

/** The pages that hold what can be seen and a little more, without the first. */
function pagesOf(top: number, bottom: number, total: number): number[] {
  const from = Math.max(1, Math.floor(Math.max(0, top - PAGE / 4) / PAGE));
  const to = Math.floor(Math.min(bottom + PAGE / 4, total - 1) / PAGE);
  return Array.from({ length: Math.max(0, to - from + 1) }, (_, place) => from + place);
}

function useSettled(pages: readonly number[]): readonly number[] {
  const key = pages.join(",");
  const [settled, setSettled] = useState(key);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(key), SETTLES_AFTER);
    return () => window.clearTimeout(timer);
  }, [key]);
  return settled === "" ? [] : settled.split(",").map(Number);
}
