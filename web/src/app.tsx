// Which view an address means.
import { GroupPage } from "./pages/group/group-page";
import { RolloutPage } from "./pages/rollout/rollout-page";
import { RolloutsPage } from "./pages/rollouts/rollouts-page";
import { RunPage } from "./pages/run/run-page";
import { RunsPage } from "./pages/runs/runs-page";
import { SqlPage } from "./pages/sql/sql-page";
import { Empty } from "./parts/states";
import { useRoute } from "./router";
import { Shell } from "./shell";
import { useLiveRuns } from "./source/use-answer";

export function App() {
  useLiveRuns();
  const { path } = useRoute();
  const [place, run, view, id] = path;
  if (place === undefined) return <RunsPage />;
  if (place === "run" && run !== undefined) {
    if (view === undefined) return <RunPage key={run} run={run} />;
    if (view === "rollouts") return <RolloutsPage key={run} run={run} />;
    if (view === "sql") return <SqlPage key={run} run={run} />;
    if (view === "group") return <GroupPage key={run} run={run} />;
    if (view === "rollout" && id !== undefined) return <RolloutPage key={run} run={run} id={id} />;
  }
  return (
    <Shell crumbs={[{ label: "Not found" }]}>
      <Empty title="There is no such view">The address {window.location.hash} leads nowhere.</Empty>
    </Shell>
  );
}
