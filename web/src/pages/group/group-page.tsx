// The page of a group: its members side by side.
import { filter, toRollouts, toRun, toRuns } from "../../addresses";
import { plainText } from "../../parts/text";
import { Answered, Empty, Loading } from "../../parts/states";
import { useRoute } from "../../router";
import { Shell } from "../../shell";
import { useAnswer } from "../../source/use-answer";
import type { GroupResponse } from "../../source/schema";
import { keyOf } from "./group-state";
import { GroupView } from "./group-view";
import "./group.css";

export function GroupPage({ run }: { run: string }) {
  const route = useRoute();
  const key = keyOf(route);
  const answer = useAnswer<GroupResponse>("group", { run, ...key, offset: route.parameters.get("offset"), against: route.parameters.get("against") }, { enabled: key !== null });
  const crumbs = [
    { label: "Runs", to: toRuns() },
    { label: run, to: toRun(run) },
    ...(key === null ? [] : [{ label: `Iteration ${key.iteration}`, to: toRollouts(run, { filter: [filter("split", "is", key.split), filter("iteration", "is", key.iteration)] }) }]),
    { label: key === null ? "Group" : `Group ${plainText(key.group)}` },
  ];
  return (
    <Shell crumbs={crumbs} run={run} tab="rollouts">
      {key === null ? (
        <Empty title="Which group?">The address has no group: it needs split, iteration, env and group.</Empty>
      ) : (
        <Answered of={answer} loading={<Loading lines={9} />}>
          {(found) => <GroupView run={run} answer={found} />}
        </Answered>
      )}
    </Shell>
  );
}
