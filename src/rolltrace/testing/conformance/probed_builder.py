"""Wraps a builder that the runner plays: what its `make_episode`, its graders and its `cleanup` do."""

import asyncio
from collections.abc import Sequence
from typing import Any

from rolltrace.envs.env import Env, EnvGroupBuilder, StepResult
from rolltrace.errors import EnvError
from rolltrace.graders.grader import Grader
from rolltrace.policies.policy import Completion
from rolltrace.rollout.contract import attribute_of, invalid_builder_fields, is_count, is_name
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.probed_env import ProbedEnv
from rolltrace.testing.conformance.probed_graders import ProbedGrader, ProbedGroupGrader
from rolltrace.testing.conformance.reply_styles import NO_ROOM
from rolltrace.testing.conformance.user_object import AlreadyReported, CancelPoint, UserObject
from rolltrace.testing.conformance.violations import Rule, short_repr
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Grade

_COPIED_FIELDS = ("env", "task", "tags", "seats", "env_args", "task_data", "seed", "reward_range")


class ProbedBuilder(EnvGroupBuilder):
    """A group with one episode for each style, whose envs are wrapped; the policy plays every seat."""

    env = task = "check"

    def __init__(
        self,
        builder: EnvGroupBuilder,
        harness: Harness,
        styles: Sequence[str],
        *,
        probe_class: type[ProbedEnv] = ProbedEnv,
        point: CancelPoint | None = None,
        first_episode: int = 0,
        graded: bool = False,
        clean_up: bool = False,
    ) -> None:
        """`first_episode` is the number of the first one; with `clean_up`, the builder is not used after this group."""
        invalid = {field.name for field in invalid_builder_fields(builder)}  # reported before
        for field in _COPIED_FIELDS:
            if field not in invalid:
                setattr(self, field, getattr(builder, field))
        self.episodes = len(styles)
        self.styles = styles
        self.probes: dict[int, ProbedEnv] = {}
        """By the index of their rollouts."""
        self.known_tasks = asyncio.all_tasks()
        """The tasks that were running before the first env was started."""
        self._builder = builder
        self._user = UserObject(builder, harness)
        self._harness = harness
        self._probe_class = probe_class
        self._point = point
        self._first_episode = first_episode
        self._clean_up = clean_up
        grader = attribute_of(builder, "grader")
        if graded and isinstance(grader, Grader) and not harness.has(Rule.BUILDER):
            self.grader = ProbedGrader(grader, harness)

    async def make_episode(self, number: int) -> Sequence[Env]:
        """The wrapped envs of the user's episode."""
        episodes = attribute_of(self._builder, "episodes")
        episode = (self._first_episode + number) % (episodes if is_count(episodes) else 1)
        name = f"`{self._user.name}.make_episode({episode})`"
        fix = "let `make_episode` make its environments without raising"
        envs = await self._user.call("make_episode", episode, rule=Rule.MAKES_ENVS, name=name, fix=fix)
        self._check_envs(envs, name)
        self.known_tasks |= asyncio.all_tasks()
        self._harness.made += envs
        return [self._wrap(env, number, seat) for seat, env in enumerate(envs)]

    def _wrap(self, env: Env, number: int, seat: int) -> ProbedEnv:
        style = self.styles[number]
        where = f" (style: {style})" if self.seats == 1 else f" (style: {style}, seat {seat})"
        point = self._point if self._point is not None and self._point.seat == seat else None
        probe = self._probe_class(env, self._harness, style, where, point)
        self.probes[number * self.seats + seat] = probe
        return probe

    def role_of(self, seat: int) -> str:
        """The policy, after a look at the role that the user's builder names."""
        try:
            role = self._builder.role_of(seat)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            what = f"raised {short_repr(error)}"
        else:
            what = "" if is_name(role) else f"gave {short_repr(role)}"
        if what:
            self._harness.report(
                Rule.BUILDER,
                f"`{self._user.name}.role_of({seat})` {what}",
                "let `role_of` name a role for every seat, such as `policy` or `opponent`",
            )
        return super().role_of(seat)

    async def cleanup(self) -> None:
        """Call the user's `cleanup` twice, if the builder is not needed any more."""
        if self._clean_up:
            name = f"`{self._user.name}.cleanup`"
            fix = "let `cleanup` release only what was acquired"
            await self._user.call("cleanup", rule=Rule.CLEANUP, name=name, fix=fix)
            fix = "let `cleanup` do nothing the second time"
            await self._user.call("cleanup", rule=Rule.CLEANUP, name=f"the second {name}", fix=fix)

    def _check_envs(self, envs: Any, name: str) -> None:
        """Report what `make_episode` gave, unless it is one new `Env` per seat."""
        if not isinstance(envs, list | tuple) or not all(isinstance(env, Env) for env in envs):
            self._refuse(
                f"{name} gave {short_repr(envs)}",
                "return a list of `Env` instances from `make_episode`, also where there is one seat",
            )
        if len(envs) != self.seats:
            self._refuse(
                f"{name} gave {len(envs)} env(s) for {self.seats} seat(s)",
                "return exactly one `Env` per seat from `make_episode`, and set `seats` to how many players there are",
            )
        known = set(map(id, self._harness.made))
        for env in envs:
            if id(env) in known:
                self._refuse(
                    f"{name} gave the same {type(env).__name__} object more than once",
                    "make new environments at each call of `make_episode`: an instance plays one rollout, once",
                )
            known.add(id(env))
            if not isinstance(takes := env.takes_any_completion, bool):
                message = f"`takes_any_completion` of `{type(env).__name__}` is {short_repr(takes)}"
                self._harness.report(Rule.TYPES, message, "set `takes_any_completion` to True or False")

    def _refuse(self, message: str, fix: str) -> None:
        self._harness.report(Rule.MAKES_ENVS, message, fix)
        raise AlreadyReported


class ProbedGroup(ProbedBuilder):
    """All episodes of the user's group, one more that fails, and one more that ends without steps."""

    def __init__(self, builder: EnvGroupBuilder, harness: Harness, styles: Sequence[str]) -> None:
        super().__init__(builder, harness, [*styles, "failed", NO_ROOM])
        self._failed_episode = len(styles)
        self._group_grader = ProbedGroupGrader(builder, harness)

    async def make_episode(self, number: int) -> Sequence[Env]:
        """The wrapped envs of the user's episode, or envs that fail."""
        if number == self._failed_episode:
            return [_FailingEnv() for _ in range(self.seats)]
        return await super().make_episode(number)

    async def grade_group(self, rollouts: Sequence[Rollout]) -> dict[str, Grade]:
        """Have the user's grader grade the group, and the group with the other two episodes."""
        end = self._failed_episode * self.seats
        failed, without_steps = rollouts[end : end + self.seats], rollouts[end + self.seats :]
        rewards = await self._group_grader.grade_forms(rollouts[:end], failed, without_steps)
        return {rollout: Grade(reward) for rollout, reward in rewards.items()}


class _FailingEnv(Env):
    async def initial_observation(self) -> StepResult:
        raise EnvError("The check made this member fail.")

    async def step(self, completion: Completion) -> StepResult:
        raise EnvError("The check made this member fail.")
