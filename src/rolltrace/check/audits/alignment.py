"""Audits of alignment: each response is under its own prompt, and members of a group play the same task."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from rolltrace.check.audit import MAX_EXAMPLES, AuditInput, Finding, Severity, Threshold, audit
from rolltrace.check.audit_tables import AuditTables, examples, scope_address
from rolltrace.check.table_source import Row
from rolltrace.query.table_schema import GROUP_COLUMNS

_LONG = 200
"""Characters, about 50 tokens. Shorter responses repeat because there are few ways to say them."""
_MAX_CHARS = 4000
"""How much of a text is searched for words."""
_CHUNK = 1000
"""How many rollouts are compared with each other's prompts."""
_MIN_WORDS = 3
"""How many words of a prompt show that a response is about it."""
_WORD = re.compile(r"\w{4,}")


@audit(
    Severity.ERROR,
    "A group's mean is the baseline for one task. With several tasks in it, an advantage says which task was easier, "
    "not which response was better.",
    "Look at how rollouts are put into groups: a list that was filtered or sorted, or an index that is off by one.",
    input=AuditInput.TABLES,
)
def group_tasks(tables: AuditTables) -> Iterator[Finding]:
    """All members of a group play the same task."""
    question = f"""
        select {GROUP_COLUMNS}, list(distinct task order by task)[:10] as tasks, count(distinct task) as n,
            list(id order by "index", id)[:10] as ids
        from rollouts group by {GROUP_COLUMNS} having min(task) <> max(task) order by all
    """
    for row in tables.rows(question):
        message = f"expected one task, the members have {row['n']}: {_listed(row['tasks'])}"
        yield Finding(message, tuple(row["ids"]), scope_address(row), data={"tasks": row["tasks"]})


@audit(
    Severity.WARNING,
    "Members of a group are compared with each other, so they must answer the same prompt. If their first prompts "
    "differ, an advantage also measures the prompt.",
    "Make the prompt depend on the task alone. If these are players of a game, record their `seat`.",
    input=AuditInput.TABLES,
)
def group_prompts(tables: AuditTables) -> Iterator[Finding]:
    """All members of a group have the same first prompt; seats of a game may differ."""
    question = f"""
        with prompts as (
            select m.rollout, bit_xor(hash(m.position, m.role, m.content, m.parts)) as prompt
            from messages m join steps s on s.rollout = m.rollout and s.step = 0
            where m.position < s.prompt_messages group by m.rollout
        ), members as (
            select {GROUP_COLUMNS}, r.id, r."index", p.prompt from rollouts r join prompts p on p.rollout = r.id
            where r.seat is null
        ), mixed as (
            select {GROUP_COLUMNS}, mode(prompt order by "index", id) as usual, count(distinct prompt) as n from members
            group by {GROUP_COLUMNS} having min(prompt) <> max(prompt)
        )
        select {GROUP_COLUMNS}, any_value(n) as n, count(*) as size,
            list(id order by "index", id) filter (prompt <> usual) as ids
        from members join mixed using ({GROUP_COLUMNS}) group by {GROUP_COLUMNS} order by all
    """
    for row in tables.rows_in_batches(question):
        message = f"expected one first prompt, the {row['size']} members have {row['n']}"
        data = {"prompts": row["n"], "members": row["size"], "count": len(row["ids"])}
        yield Finding(message, examples(row["ids"]), scope_address(row), data=data)


_SEATS = f"""
    with ends as (
        select rollout, arg_max(
            {{'extra': extra, 'moves': metrics['game_moves'], 'own': reward_data['game_reward']}}, step
        ) as last
        from steps where rollout in (select id from rollouts where seat is not null) group by rollout
    ), seats as (
        select {GROUP_COLUMNS}, r.episode, r.attempt, r.seat, r.id, r.task, r.seed, r.task_data::varchar as task_data,
            last.extra ->> '$.reason' as reason, (last.extra -> '$.rewards')::varchar as rewards,
            try_cast(last.extra -> '$.rewards' ->> r.seat::varchar as double) as expected, last.own, last.moves
        from rollouts r left join ends on ends.rollout = r.id
        where r.seat is not null and r.episode is not null and r.status = 'ok'
    ), games as (
        select {GROUP_COLUMNS}, episode, list(id order by seat) as ids,
            {{'task': count(distinct task), 'seed': count(distinct seed), 'task_data': count(distinct task_data),
              'reason': count(distinct reason), 'rewards': count(distinct rewards),
              'moves': count(distinct moves)}} as n,
            list(id order by seat) filter (own <> expected) as other
        from seats group by {GROUP_COLUMNS}, episode, attempt
    )
    from games where greatest(n.task, n.seed, n.task_data, n.reason, n.rewards, n.moves) > 1 or len(other) > 0
    order by {GROUP_COLUMNS}, episode
"""


@audit(
    Severity.ERROR,
    "The seats of an episode play one game. If their records disagree about the task, the result or the number of "
    "moves, rollouts of different games were put together, and winners and losers are mixed up.",
    "Look at how seats are matched to episodes, and at retries that replace only one seat.",
    input=AuditInput.TABLES,
)
def seats_disagree(tables: AuditTables) -> Iterator[Finding]:
    """The seats of an episode have the same task, seed, result and number of moves."""
    if not tables.has("rollouts where seat is not null and episode is not null"):
        tables.skip("no games of several seats are recorded")
        return
    for row in tables.rows_in_batches(_SEATS):
        names = [name for name, count in row["n"].items() if count > 1]
        message = f"expected the seats of episode {row['episode']} to agree, they differ in {', '.join(names)}"
        if not names:
            message = f"in episode {row['episode']} a seat has another reward than the one that the game gave it"
        address = f"{scope_address(row)}/{row['episode']}"
        yield Finding(message, tuple(row["ids"] if names else row["other"]), address, data={"different": names})


@audit(
    Severity.WARNING,
    "Sampled responses of some length differ. If they are the same word for word, one completion was recorded for "
    "several prompts or members, members were sampled with the same seed, or the policy has collapsed.",
    "Compare the responses. Check how completions are assigned to rollouts, and that each member has its own seed.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.05,
        f"The share of an iteration's responses of {_LONG} characters or more that another rollout has, too. With an "
        "entropy of 0.3 nats per token, two samples of 50 tokens are the same in one of 3 million pairs (e^15); a "
        "policy that is nearly certain repeats a few.",
        min_sample=20,
    ),
)
def repeated_responses(tables: AuditTables) -> Iterator[Finding]:
    """Long responses, sampled at a temperature above 0, differ from each other."""
    question = f"""
        with long as (
            select split, env, iteration, step, rollout, hash(response) as response from steps
            where length(response) >= {_LONG} and coalesce(try_cast(sampling ->> '$.temperature' as double), 1) > 0
        ), counted as (
            select *, count(*) over (partition by split, env, iteration, step, response) > 1 as is_copy from long
        )
        select split, env, iteration, count(*) as n, count(*) filter (is_copy) as copies,
            min(distinct rollout, {MAX_EXAMPLES}) filter (is_copy) as ids
        from counted group by split, env, iteration order by all
    """
    envs: dict[tuple[str, str], list[Row]] = {}
    for row in tables.rows_in_batches(question):
        if tables.is_enough(row["n"], "long responses") and row["copies"] / row["n"] > tables.threshold:
            envs.setdefault((row["split"], row["env"]), []).append(row)
    for (split, env), rows in sorted(envs.items()):
        copies, n = sum(row["copies"] for row in rows), sum(row["n"] for row in rows)
        ids = [rollout for row in rows for rollout in row["ids"]]
        message = (
            f"{copies} of {n} long responses are the same, word for word, as another of the same iteration "
            f"(iteration {_listed([str(row['iteration']) for row in rows])})"
        )
        data = {"count": copies, "of": n, "iterations": [row["iteration"] for row in rows][:10]}
        yield Finding(message, examples(ids), f"{split}/{env}", data=data)


@audit(
    Severity.WARNING,
    "Responses use the words of another task's prompt and none of their own. Completions were shuffled between "
    "prompts, so every reward and every gradient belongs to another task.",
    "Look at how completions are assigned to prompts: sorting by length, dropped rows, an index that is off by one.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.1,
        f"The share of an iteration's responses, of those that use words of one prompt alone, that use {_MIN_WORDS} of "
        "another and none of their own. Long responses share some words with other prompts by chance.",
        min_sample=20,
        usual_share=0.02,
    ),
)
def response_to_other_prompt(tables: AuditTables) -> Iterator[Finding]:
    """Responses use the words of their own prompt rather than those of another one in the iteration."""
    question = f"""
        with prompts as (
            select m.rollout, string_agg(left(m.content, {_MAX_CHARS}), ' ' order by m.position) as prompt
            from messages m join steps s on s.rollout = m.rollout and s.step = 0
            where m.position < s.prompt_messages and m.step is null and m.content <> '' group by m.rollout
        )
        select s.split, s.env, s.iteration, s.rollout, p.prompt, left(s.response, {_MAX_CHARS}) as response
        from steps s join prompts p on p.rollout = s.rollout
        where s.step = 0 and s.response <> '' order by s.split, s.env, s.iteration, hash(p.prompt)
    """
    found: dict[tuple[str, str, int], _WordUse] = {}
    rows = tables.rows_in_batches(question, splits_iterations=True)
    for place, members in groupby(rows, itemgetter("split", "env", "iteration")):
        found.setdefault(place, _WordUse()).add(*_words_of_others(members))
    envs: dict[tuple[str, str], dict[int, _WordUse]] = {}
    for (split, env, iteration), use in found.items():
        is_enough = tables.is_enough(use.n, "responses with words of one prompt alone")
        if is_enough and use.wrong > tables.threshold * use.n:
            envs.setdefault((split, env), {})[iteration] = use
    for (split, env), uses in sorted(envs.items()):
        wrong, n = sum(use.wrong for use in uses.values()), sum(use.n for use in uses.values())
        ids = [rollout for use in uses.values() for rollout in use.ids]
        message = (
            f"{wrong} of {n} responses use words of another task's prompt and none of their own "
            f"(iteration {_listed([str(iteration) for iteration in uses])})"
        )
        data = {"count": wrong, "of": n, "iterations": [*uses][:10]}
        yield Finding(message, examples(ids), f"{split}/{env}", data=data)


class _WordUse(msgspec.Struct):
    """The responses of one iteration that use words of one prompt alone."""

    n: int = 0
    wrong: int = 0
    """Those that use words of another prompt than their own."""
    ids: list[str] = []

    def add(self, wrong: Sequence[str], n: int) -> None:
        """Add some responses: the rollouts of wrong ones, and how many there are in all."""
        self.n += n
        self.wrong += len(wrong)
        self.ids = [*self.ids, *wrong][:MAX_EXAMPLES]


def _words_of_others(rows: Iterable[Row]) -> tuple[list[str], int]:
    """The rollouts whose responses use words of another prompt alone, and how many use words of a prompt at all."""
    wrong: list[str] = []
    n = 0
    for chunk in _chunks(rows):
        words = {prompt: _words(prompt) for prompt in {row["prompt"] for row in chunk}}
        counts: Counter[str] = Counter()
        for those in words.values():
            counts.update(those)
        single = {word for word, count in counts.items() if count == 1}
        own = {prompt: those & single for prompt, those in words.items()}
        owner = {word: prompt for prompt, those in own.items() for word in those}
        for row in chunk if len(words) > 1 else ():
            used = _words(row["response"]) & single
            if len(own[row["prompt"]]) < _MIN_WORDS or not used:
                continue
            if not used.isdisjoint(own[row["prompt"]]):
                n += 1
            elif max(Counter(owner[word] for word in used).values()) >= _MIN_WORDS:
                n += 1
                wrong.append(row["rollout"])
    return wrong, n


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def _listed(names: list[str], limit: int = 4) -> str:
    shown = ", ".join(name[:80] for name in names[:limit])
    return shown if len(names) <= limit else f"{shown}, …"
