// The side panel: details of the selected step and of the rollout.
import type { ReactNode } from "react";
import { count } from "../../format";
import { Link, useRoute } from "../../router";
import type { RolloutResponse } from "../../source/schema";
import { AboutTab } from "./about-tab";
import { CallsTab } from "./calls-tab";
import { PromptTab } from "./prompt-tab";
import { RawTab } from "./raw-tab";
import { ScoresTab } from "./scores-tab";
import { StateTab } from "./state-tab";
import { StepTab } from "./step-tab";
import { TokensTab } from "./tokens-tab";
import { shownStep, toView, viewState, type Tab } from "./view-state";

export function Panel({ run, answer }: { run: string; answer: RolloutResponse }) {
  const route = useRoute();
  const state = viewState(route);
  const { rollout } = answer;
  const step = shownStep(rollout, state);
  const tab = state.tab ?? (step === null ? "about" : "step");
  return (
    <aside className="panel card" aria-label="Details">
      <nav className="panel-tabs" aria-label="Details">
        {tabsOf(answer).map(({ name, label, amount }) => (
          <Link key={name} to={toView(route, { tab: name })} {...(name === tab ? { "aria-current": "true" as const } : {})}>
            {label}
            {amount !== null && <span className="tiny faint number"> {count(amount)}</span>}
          </Link>
        ))}
      </nav>
      <Shown tab={tab}>
        {tab === "step" && <StepTab rollout={rollout} step={step} />}
        {tab === "state" && <StateTab rollout={rollout} step={step} />}
        {tab === "prompt" && <PromptTab run={run} rollout={rollout} step={step} />}
        {tab === "tokens" && <TokensTab key={`${rollout.id}/${step?.step}`} rollout={rollout} step={step} />}
        {tab === "calls" && <CallsTab key={rollout.id} run={run} rollout={rollout} chosen={state.step} />}
        {tab === "scores" && <ScoresTab run={run} answer={answer} />}
        {tab === "about" && <AboutTab answer={answer} />}
        {tab === "raw" && <RawTab rollout={rollout} />}
      </Shown>
    </aside>
  );
}

function Shown({ tab, children }: { tab: Tab; children: ReactNode }) {
  return <div className={`panel-body panel-${tab}`}>{children}</div>;
}

/** The tabs that have something to show, and those that every rollout has. */
function tabsOf({ rollout, scores }: RolloutResponse): { name: Tab; label: string; amount: number | null }[] {
  const { steps } = rollout;
  return [
    { name: "step", label: "Step", amount: null, there: steps.length > 0 },
    { name: "state", label: "State", amount: null, there: steps.some((step) => Object.keys(step.env_state).length > 0) },
    { name: "prompt", label: "Prompt", amount: null, there: steps.length > 0 || rollout.pending_prompt !== null },
    { name: "tokens", label: "Tokens", amount: null, there: steps.some((step) => step.tokens !== null) },
    { name: "calls", label: "Calls", amount: rollout.calls.length, there: rollout.calls.length > 0 },
    { name: "scores", label: "Scores", amount: scores.length, there: scores.length > 0 },
    { name: "about", label: "Rollout", amount: null, there: true },
    { name: "raw", label: "Raw", amount: null, there: true },
  ].filter((tab) => tab.there) as { name: Tab; label: string; amount: number | null }[];
}
