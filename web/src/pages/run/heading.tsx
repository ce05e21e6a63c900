// The heading of a run: name, state, policies, times, and code revision.
import type { ReactNode } from "react";
import { ago, count, plural, seconds, short, time } from "../../format";
import { Name, plainText } from "../../parts/text";
import { Collides, RunStateBadge } from "../../parts/badge";
import type { RunResponse } from "../../source/schema";

export function Heading({ answer }: { answer: RunResponse }) {
  const { policies, groups, steps, started_at, ended_at } = answer;
  return (
    <header className="run-heading">
      <div className="row wrap">
        <h1>
          <Name text={answer.name} />
        </h1>
        <RunStateBadge state={answer.state} live={answer.live} />
        <Collides n={answer.collides} />
        {answer.path !== answer.name && (
          <span className="small faint run-path" title={plainText(answer.path, 1_000)}>
            <Name text={answer.path} most={400} />
          </span>
        )}
      </div>
      <dl className="run-facts">
        <Fact name="Policy" title={policies.map(({ value }) => plainText(value)).join(", ")}>
          <Name text={policies.slice(0, 3).map(({ value }) => plainText(value, 40)).join(", ")} />
          {policies.every(({ value }) => value === "") && "–"}
          {policies.length > 3 && ` and ${policies.length - 3} more`}
        </Fact>
        <Fact name="Started" title={time(started_at ?? answer.created_at)}>
          {ago(started_at ?? answer.created_at)}
        </Fact>
        <Fact name={answer.live ? "For" : "Took"}>{lasted(started_at, ended_at)}</Fact>
        <Fact name="Iterations">{answer.iterations === null ? "–" : iterations(answer.iterations)}</Fact>
        <Fact name="Groups">{count(groups)}</Fact>
        <Fact name="Steps">{count(steps)}</Fact>
        <Fact name="Tokens" title={`${plural(answer.prompt_tokens, "token")} of prompts, ${count(answer.completion_tokens)} of responses`}>
          {answer.prompt_tokens + answer.completion_tokens > 0 ? `${short(answer.prompt_tokens)} in, ${short(answer.completion_tokens)} out` : "not recorded"}
        </Fact>
        <Fact name="Per rollout">{answer.mean_seconds === null ? "–" : seconds(answer.mean_seconds)}</Fact>
        {answer.code_revision !== null && (
          <Fact name="Code" title={plainText(answer.code_revision, 200)}>
            <code>{plainText(answer.code_revision, 200).replace(/^([0-9a-f]{10})[0-9a-f]{30}/, "$1")}</code>
          </Fact>
        )}
        {answer.package_version !== null && <Fact name="Rolltrace">{plainText(answer.package_version, 24)}</Fact>}
      </dl>
    </header>
  );
}

function Fact({ name, title, children }: { name: string; title?: string; children: ReactNode }) {
  return (
    <div title={title}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function lasted(from: string | null, to: string | null): string {
  if (from === null || to === null) return "–";
  const apart = (new Date(to).getTime() - new Date(from).getTime()) / 1000;
  return Number.isFinite(apart) && apart >= 0 ? seconds(apart) : "–";
}

function iterations({ first, last, count: n }: { first: number; last: number; count: number }): string {
  if (n === 1) return `only ${first}`;
  return n === last - first + 1 ? `${first} to ${last}` : `${count(n)}, ${first} to ${last}`;
}
