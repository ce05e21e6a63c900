// Example statements.
export const EXAMPLES: readonly { title: string; sql: string }[] = [
  {
    title: "Reward over iterations",
    sql: `select iteration, count(*) as rollouts, count(reward) as n, avg(reward) as reward
from rollouts where not retried
group by iteration order by iteration`,
  },
  {
    title: "Why rollouts stopped",
    sql: `select stop_reason, status, count(*) as rollouts, avg(reward) as reward, avg(steps) as steps
from rollouts where not retried
group by all order by rollouts desc`,
  },
  {
    title: "Which part of the reward moved",
    sql: `select iteration, part.key as part, avg(part.value) as mean, count(*) as n
from steps, unnest(map_entries(reward_data)) as parts(part)
group by all order by all`,
  },
  {
    title: "Groups without signal",
    sql: `select env, count(*) as groups,
    count(*) filter (n >= 2 and not has_signal) as without_signal,
    count(*) filter (n >= 2 and not has_signal) / count(*) as share
from groups group by env order by share desc`,
  },
  {
    title: "Outliers in groups",
    sql: `select member.id as rollout, "group", member.reward, member.advantage
from groups, unnest(members) as them(member)
order by abs(member.advantage) desc limit 100`,
  },
  {
    title: "What graders and opponents cost",
    sql: `select role, policy, count(*) as calls, sum(completion_tokens) as tokens, avg(seconds) as seconds,
    count(error_type) / count(*) as failed
from calls group by role, policy order by calls desc`,
  },
  {
    title: "Parse errors",
    sql: `select iteration, rollout, coalesce(raw, response) as response, parse_error
from steps where parse_error is not null limit 100`,
  },
  {
    title: "Lost rollouts",
    sql: `select session, dispatched, recorded, lost, maybe_lost, closed from ledger`,
  },
];
