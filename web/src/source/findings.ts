// The findings of a run's check, and the rollouts and groups that they are about.
import { useEffect, useMemo } from "react";
import type { AuditResult, FindingsResponse, GroupKey } from "./schema";
import { useAnswer } from "./use-answer";

const LOOK_EVERY = 1_000;
const NONE: readonly Mark[] = [];

/** A finding, seen from a rollout or group that it is about. */
export interface Mark {
  audit: string;
  severity: AuditResult["severity"];
  message: string;
}

export interface Marks {
  ofRollout: (id: string) => readonly Mark[];
  ofGroup: (key: GroupKey) => readonly Mark[];
}

/** The findings; requested again while a check is running. */
export function useFindings(run: string) {
  const answer = useAnswer<FindingsResponse>("findings", { run });
  const running = answer.data?.state === "running";
  const { refetch } = answer;
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => void refetch(), LOOK_EVERY);
    return () => clearInterval(timer);
  }, [running, refetch]);
  return answer;
}

export function useMarks(run: string): Marks {
  const { data } = useFindings(run);
  return useMemo(() => marksOf(data?.found ?? []), [data]);
}

function marksOf(results: readonly AuditResult[]): Marks {
  const rollouts = new Map<string, Mark[]>();
  const groups = new Map<string, Mark[]>();
  const add = (marks: Map<string, Mark[]>, key: string, mark: Mark) => {
    const known = marks.get(key);
    if (known === undefined) marks.set(key, [mark]);
    else if (known.every((one) => one.audit !== mark.audit)) known.push(mark);
  };
  for (const { name, severity, findings } of results)
    for (const { message, rollouts: ids, address } of findings) {
      const mark = { audit: name, severity, message };
      for (const id of ids) add(rollouts, id, mark);
      if (address === null) continue;
      add(groups, address, mark);
      if (ids.length === 1) add(groups, address.slice(0, address.lastIndexOf("/")), mark); // the address of a member
    }
  return {
    ofRollout: (id) => rollouts.get(id) ?? NONE,
    ofGroup: ({ split, env, iteration, group }) => groups.get(`${split}/${env}/${iteration}/${group}`) ?? NONE,
  };
}
