// The environment's state after the selected step, and what changed since the previous step.
import { useMemo } from "react";
import { ChangeTable } from "../../parts/change-table";
import { changesBetween } from "../../parts/changes";
import { CopyButton } from "../../parts/copy-button";
import { jsonText } from "../../parts/json-lines";
import type { Rollout, Step } from "../../source/schema";
import { Fields, PanelSection } from "./panel-section";

const MOST = 200;

export function StateTab({ rollout, step }: { rollout: Rollout; step: Step | null }) {
  const before = step === null ? undefined : rollout.steps.findLast((one) => one.step < step.step);
  const changes = useMemo(() => (step === null || before === undefined ? [] : changesBetween(before.env_state, step.env_state, MOST)), [step, before]);
  if (step === null) return <p className="soft">No step was taken.</p>;
  const empty = Object.keys(step.env_state).length === 0;
  return (
    <>
      <h2 className="panel-title">State after step {step.step}</h2>
      {before !== undefined && (
        <PanelSection title={`Changed since step ${before.step}`} note={changes.length === MOST ? `the first ${MOST}` : undefined}>
          {changes.length === 0 ? <p className="small faint">Nothing.</p> : <ChangeTable changes={changes} />}
        </PanelSection>
      )}
      <PanelSection title="All of it" note={<CopyButton text={() => jsonText(step.env_state)} what="the state" />}>
        {empty ? <p className="small faint">The environment recorded no state.</p> : <Fields key={step.step} value={step.env_state} open={2} />}
      </PanelSection>
    </>
  );
}
