// The header of a step: its number, reward, termination and cost.
import { count, number, plural, seconds, signed } from "../../format";
import { Badge } from "../../parts/badge";
import { Name } from "../../parts/text";
import { Reward } from "../../parts/reward";
import { Link } from "../../router";
import type { Call, EnvFailure } from "../../source/schema";
import type { TranscriptStep } from "./transcript-events";

interface StepHeaderProperties {
  taken: TranscriptStep;
  versionChanged: boolean;
  selected: boolean;
  /** Where the step, and the calls that were made in it, are shown. */
  to: string;
  toCalls: string;
  calls: readonly Call[];
  onSelect: () => void;
}

/** What each way in which an environment does not finish a turn means. */
export const ENV_FAILURES: Record<EnvFailure, string> = {
  raised: "The environment failed on this turn and gave no reward",
  timed_out: "The rollout's time ran out while the environment was at work, so there is no reward",
  cancelled: "The rollout was cancelled while the environment was at work, so there is no reward",
  aborted: "Another seat ended the episode while the environment was at work, so there is no reward",
};

const CALM = new Set(["eos", "stop_sequence", "tool_calls"]);

export function StepHeader({ taken, versionChanged, selected, to, toCalls, calls, onSelect }: StepHeaderProperties) {
  const { step, total } = taken;
  const replaced = step.env_reward !== null && step.env_reward !== step.reward;
  const data = Object.entries(step.reward_data);
  return (
    <div className={selected ? "step-header selected" : "step-header"} data-step={step.step}>
      <h3>
        <Link to={to} onClick={onSelect} {...(selected ? { "aria-current": "step" as const } : {})}>
          Step {step.step}
        </Link>
      </h3>
      <span className="step-reward" title="The step's reward">
        <Reward value={step.reward} />
      </span>
      {step.env_failure && (
        <Badge tone="bad" title={ENV_FAILURES[step.env_failure]}>
          env {step.env_failure.replace("_", " ")}
        </Badge>
      )}
      {replaced && (
        <span className="small warn" title="A limit replaced what the environment gave">
          the environment gave {number(step.env_reward)}
        </span>
      )}
      <span className="small soft" title="The sum of rewards up to here">
        total <span className="number mono">{Number.isFinite(total) ? number(total) : String(total)}</span>
      </span>
      {data.slice(0, 6).map(([name, value]) => (
        <span key={name} className="step-datum small" title="Reward data">
          <span className="soft">
            <Name text={name} most={40} />
          </span>{" "}
          <span className="number mono">{number(value)}</span>
        </span>
      ))}
      {data.length > 6 && <span className="small faint">and {count(data.length - 6)} more</span>}
      <span className="step-costs small faint">
        {step.termination !== null && !CALM.has(step.termination) && (
          <Badge tone="warn">
            <Name text={step.termination} most={40} />
          </Badge>
        )}
        {step.parse_error !== null && <Badge tone="warn">parse error</Badge>}
        {versionChanged && step.policy_version !== null && (
          <Badge tone="accent">
            <Name text={`version ${step.policy_version}`} most={48} />
          </Badge>
        )}
        {calls.length > 0 && (
          <Link to={toCalls}>
            {count(calls.length)} <Name text={calls[0]?.role ?? ""} most={20} /> {calls.length === 1 ? "call" : "calls"}
          </Link>
        )}
        {step.usage !== null && (
          <span title={`${count(step.usage.prompt_tokens)} tokens of prompt, ${count(step.usage.completion_tokens)} of answer`}>{plural(step.usage.completion_tokens, "token")}</span>
        )}
        {step.seconds !== null && <span>{seconds(step.seconds)}</span>}
      </span>
    </div>
  );
}

/** What a step's header says, in a sentence, for the time line. */
export function stepSentence({ step, total }: TranscriptStep): string {
  return `Step ${step.step}: reward ${signed(step.reward)}, total ${Number.isFinite(total) ? number(total) : String(total)}`;
}
