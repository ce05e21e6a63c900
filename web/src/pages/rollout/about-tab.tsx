// How the rollout was made, the terms of its reward, and notes about its record.
import { time } from "../../format";
import { Fact } from "../../parts/fact";
import { Name } from "../../parts/text";
import { NumberTable } from "../../parts/number-table";
import type { EndedBeforeFirstTurn, Json, RolloutResponse } from "../../source/schema";
import { FreeForm, PanelSection } from "./panel-section";
import { RewardTerms } from "./rollout-end";

export function AboutTab({ answer }: { answer: RolloutResponse }) {
  const { rollout } = answer;
  return (
    <>
      <h2 className="panel-title">The rollout</h2>
      <dl className="panel-facts">
        <Fact name="Id">
          <code>
            <Name text={rollout.id} most={80} />
          </code>
        </Fact>
        <Fact name="Seed">{rollout.seed === null ? "–" : <code>{String(rollout.seed)}</code>}</Fact>
        {rollout.episode !== null && <Fact name="Episode">{rollout.episode}</Fact>}
        {rollout.seat !== null && <Fact name="Seat">{rollout.seat}</Fact>}
        <Fact name="Attempt">{rollout.attempt}</Fact>
        <Fact name="Session">
          <code>
            <Name text={rollout.session} most={80} />
          </code>
        </Fact>
        <Fact name="Started">{time(rollout.started_at)}</Fact>
        <Fact name="Ended">{time(rollout.ended_at)}</Fact>
      </dl>
      <PanelSection title="Reward">
        <RewardTerms answer={answer} />
      </PanelSection>
      {rollout.grade !== null && (
        <PanelSection title="Grade">
          <NumberTable caption="What the grade is made of" numbers={{ reward: rollout.grade.reward, ...rollout.grade.reward_data }} />
          <FreeForm title="Data of the grader" value={rollout.grade.extra} />
        </PanelSection>
      )}
      {Object.keys(rollout.metrics).length > 0 && (
        <PanelSection title="Metrics">
          <NumberTable caption="Metrics of the rollout" numbers={rollout.metrics} />
        </PanelSection>
      )}
      <FreeForm title="Task data" value={rollout.task_data} />
      <FreeForm title="Environment's arguments" value={rollout.env_args} />
      {rollout.ended_before_first_turn !== undefined && <EndedBeforeFirstTurnSection result={rollout.ended_before_first_turn} />}
      {rollout.notes.length > 0 && (
        <PanelSection title="Notes about the record">
          <ul className="note-list small">
            {rollout.notes.slice(0, 500).map((note, place) => (
              <li key={place}>
                <span className="mono">
                  <Name text={note.path} most={300} />
                </span>{" "}
                <Name text={note.message} most={1_000} />
              </li>
            ))}
          </ul>
        </PanelSection>
      )}
    </>
  );
}

function EndedBeforeFirstTurnSection({ result }: { result: EndedBeforeFirstTurn }) {
  return (
    <PanelSection title="Over before the first turn">
      <NumberTable caption="What the environment gave" numbers={{ reward: result.reward, ...result.reward_data, ...result.metrics }} />
      <FreeForm title="State" value={map(result.env_state)} />
      <FreeForm title="Extra" value={map(result.extra)} />
      <FreeForm title="Logs" value={map(result.logs)} />
    </PanelSection>
  );
}

function map(value: Json): { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}
