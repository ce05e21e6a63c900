// Model calls that are not the policy's turns: graders, answerers, opponents.
import { plural } from "../../format";
import type { RolloutRecord } from "../../source/types";
import { CallList } from "./call-list";

export function CallsTab({ run, rollout, chosen }: { run: string; rollout: RolloutRecord; chosen: number | null }) {
  const roles = [...new Set(rollout.calls.map((call) => call.role.slice(0, 30)))];
  return (
    <>
      <h2 className="panel-title">Calls</h2>
      <p className="small faint">
        {plural(rollout.calls.length, "model call")} besides the policy's turns: {roles.slice(0, 6).join(", ")}.
      </p>
      {rollout.calls.length === 0 ? <p className="soft">None were made.</p> : <CallList run={run} calls={rollout.calls} chosen={chosen} />}
    </>
  );
}
