// The parts of the rollout's page, and the keys that work on it.
import { useMemo, useRef } from "react";
import { toGroup } from "../../addresses";
import { type StepMark, StepTimeline, type TimelinePoint } from "../../charts/step-timeline";
import { finite } from "../../format";
import { FindingMarks } from "../../parts/finding-marks";
import { go, useRoute } from "../../router";
import { type Shortcut, useShortcuts } from "../../shortcuts";
import { useMarks } from "../../source/findings";
import type { Rollout, RolloutResponse, Step } from "../../source/schema";
import type { NeighbourLinks } from "./neighbours";
import { Panel } from "./panel";
import { RolloutHeader } from "./rollout-header";
import { stepSentence } from "./step-header";
import { Transcript, type TranscriptHandle } from "./transcript";
import { type TranscriptEvent, transcriptEvents, type TranscriptMessage, type TranscriptStep } from "./transcript-events";
import { toNeighbour, toView, viewState } from "./view-state";

interface RolloutViewProperties {
  run: string;
  answer: RolloutResponse;
  neighbours: NeighbourLinks;
}

export function RolloutView({ run, answer, neighbours }: RolloutViewProperties) {
  const { rollout } = answer;
  const route = useRoute();
  const state = viewState(route);
  const marks = useMarks(run);
  const transcript = useRef<TranscriptHandle>(null);
  const group = toGroup(run, rollout);
  const events = useMemo(() => transcriptEvents(rollout), [rollout]);
  const points = useMemo(() => timelinePoints(rollout, events), [rollout, events]);
  const chosen = points.findIndex((point) => point.step === state.step);
  const choose = (step: number) => go(toView(route, { step }), { replace: true });
  const keys = useMemo((): Shortcut[] => {
    const way = (to: string | null) => () => to !== null && go(to);
    const by = (distance: number) => () => {
      const target = points[Math.max(0, Math.min(points.length - 1, chosen < 0 ? 0 : chosen + distance))];
      if (target !== undefined) choose(target.step);
    };
    return [
      { keys: "j", does: "Next rollout", run: way(neighbours.next) },
      { keys: "k", does: "Previous rollout", run: way(neighbours.previous) },
      { keys: "ArrowRight", does: "Next rollout", run: way(neighbours.next) },
      { keys: "ArrowLeft", does: "Previous rollout", run: way(neighbours.previous) },
      { keys: "n", does: "Next step", run: by(1) },
      { keys: "p", does: "Previous step", run: by(-1) },
      { keys: "u", does: "Up to the group", run: way(group) },
      { keys: "l", does: "Back to the listing", run: way(neighbours.list) },
      { keys: "o", does: "Unfold or fold the texts of the step", run: () => transcript.current?.toggleStep() },
      { keys: "O", does: "Unfold or fold all texts", run: () => transcript.current?.toggleAll() },
      { keys: "e", does: "Go to the end", run: () => transcript.current?.showEnd() },
      { keys: "/", does: "Find in the transcript", run: () => transcript.current?.find() },
      { keys: "r", does: "Show or hide the raw record", run: () => go(toView(route, { tab: state.tab === "raw" ? null : "raw" }), { replace: true }) },
      { keys: "w", does: "Make the details wide or narrow", run: () => go(toView(route, { wide: state.wide ? null : "1" }), { replace: true }) },
    ];
  }, [neighbours.next, neighbours.previous, neighbours.list, group, points, chosen, route, state.tab, state.wide]);
  useShortcuts(keys);
  return (
    <>
      <RolloutHeader answer={answer} neighbours={neighbours} group={group} toRelative={(id) => toNeighbour(run, id, route)} showFailure={() => transcript.current?.showEnd()} />
      <FindingMarks run={run} marks={marks.ofRollout(rollout.id)} />
      {points.length > 1 && <StepTimeline points={points} chosen={chosen < 0 ? null : chosen} to={(step) => toView(route, { step })} choose={choose} />}
      <div className={state.wide ? "rollout-columns wide" : "rollout-columns"}>
        <Transcript run={run} answer={answer} events={events} handle={transcript} />
        <Panel run={run} answer={answer} />
      </div>
    </>
  );
}

function timelinePoints(rollout: Rollout, events: readonly TranscriptEvent[]): TimelinePoint[] {
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
