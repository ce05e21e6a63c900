// The points of the step timeline.
import type { StepMark, TimelinePoint } from "../../charts/step-timeline";
import { finite } from "../../format";
import type { Rollout, Step } from "../../source/schema";
import { stepSentence } from "./step-header";
import type { TranscriptEvent, TranscriptMessage, TranscriptStep } from "./transcript-events";

export function timelinePoints(rollout: Rollout, events: readonly TranscriptEvent[]): TimelinePoint[] {
  const answers = new Map(events.filter((event): event is TranscriptMessage => event.kind === "message" && event.step !== null).map((event) => [event.step, event]));
  const called = new Set(rollout.calls.map((call) => call.step));
  let version = rollout.policy_version;
  return events
    .filter((event): event is TranscriptStep => event.kind === "step")
    .map((taken, place) => {
      const { step } = taken;
      const marks = marksOf(step, answers.get(step));
      if (step.policy_version !== version) marks.push("version");
      version = step.policy_version;
      if (called.has(step.step)) marks.push("call");
      if (rollout.status === "error" && place === rollout.steps.length - 1) marks.unshift("error");
      return { step: step.step, reward: finite(step.reward), total: finite(taken.total), marks, sentence: [stepSentence(taken), ...marks].join(", ") };
    });
}

function marksOf(step: Step, answer: TranscriptMessage | undefined): StepMark[] {
  const failed = finite(step.metrics.tool_errors) || answer?.calls.some((call) => call.failure !== null) || answer?.message.tool_calls?.some((call) => call.error);
  return [...(step.env_failure ? ["env failure" as const] : []), ...(step.parse_error === null ? [] : ["parse error" as const]), ...(failed ? ["tool failure" as const] : []), ...(typeof step.reward === "number" ? [] : ["not a number" as const])];
}
