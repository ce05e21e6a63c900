// The exact prompt of the chosen step: the messages as they were sent.
import { useMemo } from "react";
import { count, plural } from "../../format";
import { CopyButton } from "../../parts/copy-button";
import { jsonText } from "../../parts/json-lines";
import { VirtualRows } from "../../parts/virtual-rows";
import { Link, useRoute } from "../../router";
import type { Rollout, Step } from "../../source/schema";
import { messagesOf, rangesText } from "./transcript-events";
import { TranscriptRow } from "./transcript-row";
import { messageRows, rowHeight } from "./transcript-rows";
import { useFolds } from "./use-folds";
import { toView } from "./view-state";

export function PromptTab({ run, rollout, step }: { run: string; rollout: Rollout; step: Step | null }) {
  const route = useRoute();
  const { opened, toggle } = useFolds();
  const ranges = step?.prompt ?? rollout.pending_prompt;
  const messages = useMemo(() => messagesOf(rollout, ranges ?? []), [rollout, ranges]);
  const rows = useMemo(() => messageRows(messages, opened), [messages, opened]);
  if (ranges === null) return <p className="soft">Nothing was sent.</p>;
  const last = step !== null && step === rollout.steps.at(-1);
  return (
    <>
      <div className="row spread wrap">
        <h2 className="panel-title">{step === null ? "Prompt without a step" : `Prompt of step ${step.step}`}</h2>
        <CopyButton text={() => jsonText(messages)} what="the prompt as JSON">
          JSON
        </CopyButton>
      </div>
      <p className="small faint">
        Exactly what the policy was sent: {plural(messages.length, "message")}
        {step?.usage ? `, ${count(step.usage.prompt_tokens)} tokens` : ""} ({rangesText(ranges)} of the record).{" "}
        {step !== null && step.step > 0 && <Link to={toView(route, { step: step.step - 1 })}>The one before</Link>}{" "}
        {step !== null && !last && <Link to={toView(route, { step: step.step + 1 })}>The next</Link>}
      </p>
      <VirtualRows rows={rows} keyOf={(row) => row.key} estimate={rowHeight} label="Exact prompt" className="panel-rows">
        {(row) => <TranscriptRow run={run} row={row} toggle={toggle} />}
      </VirtualRows>
    </>
  );
}
