// The numbers of the selected step, the environment's data about it, and the tools.
import { count, number, seconds } from "../../format";
import { Fact } from "../../parts/fact";
import { JsonTree } from "../../parts/json-tree";
import { NumberTable } from "../../parts/number-table";
import { Reward } from "../../parts/reward";
import { Name, LongText, VisibleText, truncated } from "../../parts/text";
import { TextPiece } from "../../parts/text-piece";
import type { Rollout, Step, ToolSpec } from "../../source/schema";
import { FreeForm, PanelSection } from "./panel-section";
import { ENV_FAILURES } from "./step-header";

export function StepTab({ rollout, step }: { rollout: Rollout; step: Step | null }) {
  if (step === null) return <p className="soft">No step was taken.</p>;
  const before = rollout.steps.findLast((one) => one.step < step.step);
  const sampling = step.sampling === null ? undefined : rollout.sampling[step.sampling];
  const tools = step.tools === null ? undefined : rollout.tools[step.tools];
  return (
    <>
      <h2 className="panel-title">Step {step.step}</h2>
      <dl className="panel-facts">
        <Fact name="Reward">
          <Reward value={step.reward} digits={4} />
          {step.env_reward !== null && step.env_reward !== step.reward && <span className="small warn"> the environment gave {number(step.env_reward, 4)}</span>}
          {step.env_reward === null && !step.env_failure && <span className="small faint"> the environment was not called</span>}
        </Fact>
        {step.env_failure && (
          <Fact name="Environment">
            <span className="bad">{ENV_FAILURES[step.env_failure]}</span>
          </Fact>
        )}
        {step.termination !== null && (
          <Fact name="Ended by">
            <Name text={step.termination} most={60} />
          </Fact>
        )}
        {step.usage !== null && (
          <Fact name="Tokens">
            {count(step.usage.completion_tokens)} of response, {count(step.usage.prompt_tokens)} of prompt
          </Fact>
        )}
        {step.seconds !== null && <Fact name="Time to answer">{seconds(step.seconds)}</Fact>}
        {step.policy_version !== null && (
          <Fact name="Policy version">
            <Name text={String(step.policy_version)} most={80} />
          </Fact>
        )}
      </dl>
      {step.parse_error !== null && (
        <PanelSection title="Parse error">
          <TextPiece text={step.parse_error.slice(0, 8_000)} />
        </PanelSection>
      )}
      {Object.keys(step.reward_data).length > 0 && (
        <PanelSection title="Reward data" note={before === undefined ? undefined : "before, where it differs"}>
          <NumberTable caption="Reward data" numbers={step.reward_data} before={before?.reward_data} />
        </PanelSection>
      )}
      {Object.keys(step.metrics).length > 0 && (
        <PanelSection title="Metrics">
          <NumberTable caption="Metrics" numbers={step.metrics} before={before?.metrics} />
        </PanelSection>
      )}
      <FreeForm title="Extra" value={step.extra} />
      <FreeForm title="Logs" value={step.logs} />
      {sampling !== undefined && <FreeForm title="Sampling" value={{ ...sampling }} />}
      {tools !== undefined && (
        <PanelSection title="Tools offered" note={count(tools.length)}>
          <ToolList tools={tools} />
        </PanelSection>
      )}
    </>
  );
}

function ToolList({ tools }: { tools: ToolSpec[] }) {
  return (
    <ul className="tool-list">
      {tools.slice(0, 200).map((tool, place) => (
        <li key={place}>
          <bdi className="mono tool-name">
            <VisibleText text={truncated(tool.name, 200)} />
          </bdi>
          {tool.description && (
            <div className="small soft">
              <LongText text={tool.description} fold={400} label="description" />
            </div>
          )}
          <JsonTree label="arguments" value={tool.parameters ?? {}} />
        </li>
      ))}
    </ul>
  );
}
