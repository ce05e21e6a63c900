// Model calls that are not the policy's turns: graders, answerers, opponents.
import { Fragment } from "react";
import { plural } from "../../format";
import { Name } from "../../parts/text";
import type { Rollout } from "../../source/schema";
import { CallList } from "./call-list";

/** How many roles are named. */
const MOST = 6;

export function CallsTab({ run, rollout, chosen }: { run: string; rollout: Rollout; chosen: number | null }) {
  const roles = [...new Set(rollout.calls.map((call) => call.role))];
  if (roles.length === 0) return <p className="soft">No model calls were made besides the policy's turns.</p>;
  return (
    <>
      <h2 className="panel-title">Calls</h2>
      <p className="small faint">
        {plural(rollout.calls.length, "model call")} besides the policy's turns:{" "}
        {roles.slice(0, MOST).map((role, place) => (
          <Fragment key={role}>
            {place > 0 && ", "}
            <Name text={role} most={30} />
          </Fragment>
        ))}
        {roles.length > MOST && " and others"}.
      </p>
      <CallList run={run} calls={rollout.calls} chosen={chosen} />
    </>
  );
}
