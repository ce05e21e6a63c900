"""Lets a `GRPOTrainer` of TRL train on our environments: it samples, and our runner plays and records."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

from rolltrace.bridges.stepping import SteppedGroup, SteppedRollout
from rolltrace.bridges.trl_batch import GroupNumbers
from rolltrace.bridges.trl_chat import Chat
from rolltrace.envs.registry import load_env
from rolltrace.envs.tasks import Tasks, make_builder
from rolltrace.errors import ContextOverflowError, InputError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.store.writer import RunWriter
from rolltrace.trace.freeform import describe
from rolltrace.trace.message import Sampling
from rolltrace.trace.sink import Sink
from rolltrace.trace.tokens import Tokens

Result = TypeVar("Result")


def to_trl(
    tasks: Tasks | str,
    *,
    run: Sink | None = None,
    count: int | None = None,
    eval_tasks: Tasks | str | None = None,
    eval_count: int | None = None,
    roles: Mapping[str, Policy] | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    seed: int = 0,
) -> dict[str, Any]:
    """Keyword arguments for `GRPOTrainer`, to train on our environment, by its tasks or its name.

    They are datasets, `rollout_func` and `reward_funcs`. The runner plays, grades and records the groups as `play`
    does, and TRL samples the answers. `count` is the number of tasks, and has to be given if there is no end of them.
    `roles` are the policies of graders and opponents. A row of the dataset only names its task: the environment makes
    the prompt.
    """
    if run is not None and not callable(getattr(run, "begin", None)):
        raise InputError(f"Expected a run that is being written, such as from create_run, got {describe(run)}.")
    dataset = _load("datasets").Dataset
    played = load_env(tasks) if isinstance(tasks, str) else tasks
    evaluated = load_env(eval_tasks) if isinstance(eval_tasks, str) else eval_tasks
    sources: dict[str, tuple[Tasks, int]] = {}
    arguments: dict[str, Any] = {}
    for split, source, wanted in (("train", played, count), ("eval", evaluated, eval_count)):
        if source is None:
            continue
        names = _task_names(split, source, wanted, roles, seed)
        sources.update({name: (source, number) for number, name in enumerate(names)})
        rows = [{"prompt": [{"role": "user", "content": name}]} for name in names]
        arguments[f"{split}_dataset"] = dataset.from_list(rows)
    return {
        **arguments,
        "rollout_func": RolloutFunction(sources, run, roles, limits, seed),
        "reward_funcs": [_reward_function(played.env)],
    }


def _task_names(
    split: str, tasks: Tasks, count: int | None, roles: Mapping[str, Policy] | None, seed: int
) -> list[str]:
    """A name for each task; raises `InputError` for tasks that a trainer of one policy cannot play."""
    if not isinstance(tasks, Tasks):
        raise InputError(f"Expected tasks, such as ArithmeticTasks(), got {describe(tasks)}.")
    if count is None and tasks.count is None:
        which = "count" if split == "train" else "eval_count"
        raise InputError(f"Expected {which}=, because there is no end of tasks of {tasks.env}: pass a number of tasks.")
    group = SteppedGroup(make_builder(tasks, 0, episodes=1, seed=seed), roles=roles)
    if len(group.rollouts) != 1:
        raise InputError(
            f"Expected an environment in which the trained policy has one seat, got {tasks.env} with "
            f"{len(group.rollouts)}: a completion of TRL is one player's, so pass roles= for the others."
        )
    number = tasks.count if count is None else count if tasks.count is None else min(count, tasks.count)
    return [f"{tasks.env} {split} {place}" for place in range(number or 0)]


def _reward_function(name: str) -> Any:
    """The reward that the runner has computed; TRL logs it under the name of the environment."""

    def reward(rolltrace_reward: list[float | None], **columns: Any) -> list[float | None]:  # noqa: ARG001 - as TRL calls it
        return rolltrace_reward

    reward.__name__ = name
    return reward


class _Row:
    """One completion of TRL: a rollout, with the ids so far."""

    def __init__(self, rollout: SteppedRollout) -> None:
        self.rollout = rollout
        self.request: Request | None = None
        """The last request."""
        self.prompt_ids: list[int] = []
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] | None = []

    def add(self, ids: Sequence[int], logprobs: Sequence[float] | None, is_sampled: bool) -> None:
        """Append what the policy sampled, or what the environment said in between."""
        self.ids += ids
        self.mask += [int(is_sampled)] * len(ids)
        if logprobs is None and is_sampled:
            self.logprobs = None
        if self.logprobs is not None:
            self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs


class RolloutFunction:
    """The `rollout_func`: plays a group for each `num_generations` prompts."""

    def __init__(
        self,
        sources: Mapping[str, tuple[Tasks, int]],
        run: Sink | None,
        roles: Mapping[str, Policy] | None,
        limits: Limits,
        seed: int,
    ) -> None:
        self.run = run
        """Where the runner records the rollouts."""
        self._sources = sources
        self._roles = roles
        self._limits = limits
        self._seed = seed
        self._numbers = GroupNumbers.of_run(run) if isinstance(run, RunWriter) else GroupNumbers()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Play the tasks that the prompts name, and return the completions as TRL wants them."""
        chat = Chat(trainer)
        groups = self._groups(prompts, trainer)
        rows = [_Row(rollout) for rollout in self._in_loop(_start(groups))]
        try:
            while requests := self._in_loop(_next_requests(rows)):
                answers = _sample(trainer, chat, requests)
                self._in_loop(_answer(answers))
            rewards = self._in_loop(_rewards(groups))
        finally:
            self._in_loop(_close(groups))
        for row in rows:
            if not row.mask:  # TRL wants at least one token; nothing is learned from one that was not sampled
                row.prompt_ids = row.prompt_ids or chat.render(prompts[0], ())
                row.add([chat.end_token], None, is_sampled=False)
        has_logprobs = all(row.logprobs is not None for row in rows) and any(any(row.mask) for row in rows)
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.ids for row in rows],
            "env_mask": [row.mask for row in rows],
            "logprobs": [row.logprobs for row in rows] if has_logprobs else None,
            "rolltrace_reward": rewards,
            "rolltrace_rollout": [row.rollout.id for row in rows],
        }

    def _groups(self, prompts: Sequence[Any], trainer: Any) -> list[SteppedGroup]:
        is_training = trainer.model.training
        episodes = trainer.num_generations if is_training else trainer.num_generations_eval
        if len(prompts) % episodes:
            raise InputError(
                f"Expected whole groups of {episodes} in each process, got {len(prompts)} prompts: make the batch size "
                "per device times steps_per_generation a multiple of num_generations."
            )
        split, step = "train" if is_training else "eval", trainer.state.global_step
        rank, ranks = trainer.accelerator.process_index, trainer.accelerator.num_processes
        place = self._numbers.take(split, step, rank, ranks, len(prompts), episodes)
        args = trainer.args
        sampling = Sampling(
            temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p,
            max_tokens=args.max_completion_length,
        )  # fmt: skip
        groups = []
        for first in range(0, len(prompts), episodes):
            tasks, number = self._sources[prompts[first][-1]["content"]]
            groups.append(
                SteppedGroup(
                    make_builder(tasks, number, episodes=episodes, seed=self._seed),
                    run=self.run,
                    group=str(place.group_and_index(first)[0]),
                    iteration=step,
                    split=split,
                    policy=getattr(trainer.model.config, "_name_or_path", "") or "trl",
                    roles=self._roles,
                    limits=self._limits,
                    sampling=sampling,
                    seed=self._seed,
                )
            )
        return groups

    def _in_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run this in an event loop of its own thread: the thread of the trainer may have one that is running."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rolltrace-trl", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _start(groups: Sequence[SteppedGroup]) -> list[SteppedRollout]:
    return [rollout for group in groups for rollout in await group.start()]


async def _next_requests(rows: Sequence[_Row]) -> list[tuple[_Row, Request]]:
    requests = await asyncio.gather(*(row.rollout.next_request() for row in rows))
    return [(row, request) for row, request in zip(rows, requests, strict=True) if request is not None]


async def _answer(answers: Sequence[tuple[_Row, Completion | Exception]]) -> None:
    for row, answer in answers:
        if isinstance(answer, Exception):
            row.rollout.fail(answer)
        else:
            row.rollout.answer(answer)


async def _rewards(groups: Sequence[SteppedGroup]) -> list[float | None]:
    """The reward of each rollout that was answered here; None if it failed, which TRL leaves out of its group."""
    rewards: list[float | None] = []
    for group in groups:
        by_index = {member.index: member.reward for member in (await group.result()).members}
        rewards += [by_index.get(rollout.index) for rollout in group.rollouts]
    return rewards


async def _close(groups: Sequence[SteppedGroup]) -> None:
    await asyncio.gather(*(group.close() for group in groups))


def _sample(
    trainer: Any, chat: Chat, requests: Sequence[tuple[_Row, Request]]
) -> list[tuple[_Row, Completion | Exception]]:
    """Answer the requests as one batch; one that does not fit any more is answered by an error."""
    answers: list[tuple[_Row, Completion | Exception]] = []
    fitting: list[tuple[_Row, Request, int]] = []
    for row, request in requests:
        between: list[int] = []
        if row.request is None:
            row.prompt_ids = chat.render_first(request)
        else:
            between = chat.render_between(row.request, request, row.ids)
        row.request = request
        room = chat.room(len(row.prompt_ids), len(row.ids) + len(between))
        if room > 0:
            row.add(between, None, is_sampled=False)
            fitting.append((row, request, room))
        else:
            error = ContextOverflowError("The prompt leaves no room in max_completion_length, or in the context.")
            answers.append((row, error))
    if fitting:
        prompts = [[*row.prompt_ids, *row.ids] for row, _, _ in fitting]
        sampled, logprobs = trainer._generate_single_turn(prompts, None, {}, 1)
        for number, (row, request, room) in enumerate(fitting):
            ids = sampled[number][:room]
            known = None if logprobs is None else logprobs[number][:room]
            tokens = Tokens(tuple(prompts[number]), tuple(ids), None if known is None else tuple(known))
            answers.append((row, chat.parse(request, tokens, trainer.state.global_step)))
            row.add(ids, known, is_sampled=True)
    return answers


def _load(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"Expected TRL and its package {name}: pip install 'trl>=1.16,<1.17'. ({error})") from error
