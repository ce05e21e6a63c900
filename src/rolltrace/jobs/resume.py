"""Resumes an interrupted run: reads its plan, and which of its groups are finished."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import InputError
from rolltrace.jobs.plan import IterationGroups, Plan, groups_of_iteration
from rolltrace.jobs.play_config import PlayConfig, contains_redacted, read_play_config
from rolltrace.policies.policy import Policy
from rolltrace.query.run import Run, open_single_run
from rolltrace.query.run_state import SILENT_SECONDS, SessionState, continued_sessions, session_state
from rolltrace.query.table_schema import CANCELLED, INTERRUPTED_SCORE
from rolltrace.rollout.runner import GroupNames
from rolltrace.rollout.strategies import RETRIED_LAYERS
from rolltrace.secret_redaction import PLACEHOLDER
from rolltrace.store.create import code_revision
from rolltrace.store.layout import RunInfo, read_info
from rolltrace.store.ledger import Ledger
from rolltrace.store.object_address import is_address
from rolltrace.store.object_files import ObjectFiles
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Level, Recording
from rolltrace.store.upload import upload_leftovers
from rolltrace.trace.codec import utc_now
from rolltrace.trace.score import GroupKey

_GROUPS = f"""
    select iteration, env, "group",
        count(*) as members,
        count(distinct "index") as indexes,
        max("index") + 1 as expected,
        count(distinct session) as sessions,
        count(*) filter ({CANCELLED}) as cancelled,
        count(*) filter (status = 'ok' and line_reward is null and graded.rollout is null) as ungraded,
        count(*) filter (status = 'error' and list_contains($retried, error_layer) and attempt < $retries) as to_retry
    from rollouts left join (
        select distinct rollout from scores where name = 'reward' and not {INTERRUPTED_SCORE}
    ) graded on graded.rollout = rollouts.id
    where split = $split and not retried
    group by all
"""  # noqa: S608 - the conditions are constants
"""The recorded state of each group, without superseded rollouts and earlier attempts.

Stricter than `FINISHED`: a rollout of the runner with neither a reward nor a score still has to be graded.
"""


class RecordedGroup(NamedTuple):
    """The recorded state of one group."""

    members: int
    is_finished: bool
    """Whether all recorded members ended in one session, and are graded if the group is graded."""


RecordedGroups = dict[GroupKey, RecordedGroup]
"""The recorded groups of one iteration."""


class Resumption(PlayConfig, frozen=True, kw_only=True):
    """An interrupted run: its plan, its arguments and its recorded groups."""

    path: Path
    run: str
    """The run's id."""
    sessions: tuple[str, ...]
    groups: dict[int, RecordedGroups]
    """By iteration."""
    warnings: tuple[str, ...] = ()

    @property
    def groups_left(self) -> int:
        """An estimate of the groups left to play, from the record alone."""
        finished = sum(self._seems_finished(group) for groups in self.groups.values() for group in groups.values())
        return max(0, self.plan.groups * self.plan.iterations - finished)

    def _seems_finished(self, group: RecordedGroup) -> bool:
        """Whether a group is finished if its episodes have one seat."""
        return group.is_finished and group.members >= self.plan.group_size

    async def remaining_iterations(self, tasks: Tasks) -> list[IterationGroups]:
        """The groups left to play. Raises `InputError` if the environment draws other tasks than the run has."""
        if tasks.build_in_thread:
            return await asyncio.to_thread(self._remaining_iterations, tasks)
        return self._remaining_iterations(tasks)

    def _remaining_iterations(self, tasks: Tasks) -> list[IterationGroups]:
        iterations = []
        for iteration in range(self.plan.iterations):
            if self._is_iteration_finished(iteration, tasks.env):
                continue
            groups = groups_of_iteration(tasks, self.plan, iteration)
            if iteration in self.groups:
                builders = list(groups.builders)
                finished = self._finished(iteration, builders)
                if len(finished) == len(builders):
                    continue
                groups = IterationGroups(iteration, builders, finished)
            iterations.append(groups)
        return iterations

    def _is_iteration_finished(self, iteration: int, env: str) -> bool:
        """Whether all groups of an iteration are finished, decided without making their builders.

        Only a builder knows its number of members, but if a later iteration has begun, this one has ended.
        """
        groups = [group for key, group in self.groups.get(iteration, {}).items() if key.env == env]
        is_finished = len(groups) >= self.plan.groups and all(map(self._seems_finished, groups))
        return is_finished and any(
            later > iteration and any(key.env == env for key in groups) for later, groups in self.groups.items()
        )

    def _finished(self, iteration: int, builders: Sequence[EnvGroupBuilder]) -> frozenset[str]:
        names = GroupNames()
        envs = {builder.env for builder in builders}
        recorded = {key: group for key, group in self.groups[iteration].items() if key.env in envs}
        finished = set()
        for builder in builders:
            name = names.name(builder.task)
            group = recorded.pop(GroupKey(self.plan.split, iteration, builder.env, name), None)
            if group is not None and group.is_finished and group.members == builder.episodes * builder.seats:
                finished.add(name)
        if recorded:
            env, name = min((key.env, key.group) for key in recorded)
            raise InputError(
                f"Expected {env} to draw the groups that {self.path} has, but group {name!r} of iteration {iteration} "
                "is not among them: its tasks, data or code have changed. Start a new run."
            )
        return frozenset(finished)

    def require_only_session(self, own: str | None = None) -> None:
        """Raise `InputError` if another session began after the run was read, because it plays the same groups.

        Of two sessions that join at the same time, the one with the smaller id continues; `own` is the caller's id.
        """
        for session in RunReader(self.path).ledgers():
            if session not in self.sessions and (own is None or session < own):
                raise InputError(
                    f"Expected an interrupted run, but session {session} of {self.path} began in the meantime and may "
                    "still be running: wait until it has ended, and resume again if the run is incomplete."
                )

    # Arguments of `play` that may be passed when resuming

    def choose_env(self, env: str | Tasks | None) -> str | Tasks:
        """The run's env. Only one that was a Python object has to be passed again."""
        if isinstance(env, Tasks) and env.env == self.env:
            return env
        if env is not None:
            name = env if isinstance(env, str) else env.env
            raise InputError(f"Expected the env of {self.path}, which is {self.env}, got {name}: leave it out.")
        if "env" in self.objects:
            raise InputError(
                f"The environment {self.env} of {self.path} was a Python object: "
                f"pass it again, with rolltrace.play(tasks, resume={str(self.path)!r})."
            )
        return self.env

    def choose_policies(
        self, policy: str | Policy | None, roles: Mapping[str, str | Policy] | None
    ) -> tuple[str | Policy, dict[str, str | Policy]]:
        """The run's policies, replaced by those that are passed."""
        passed = {**({} if policy is None else {"policy": policy}), **(roles or {})}
        for role, spec in {"policy": self.policy, **self.roles}.items():
            option = "--policy SPEC" if role == "policy" else f"--policy {role}=SPEC"
            if role not in passed and role in self.objects:
                raise InputError(
                    f"The {role} {spec!r} of {self.path} was a Python object: pass a policy with {option}."
                )
            if role not in passed and PLACEHOLDER in spec:
                raise InputError(f"The {role} of {self.path} had a secret, which is not recorded: pass {option} again.")
        chosen: dict[str, str | Policy] = {"policy": self.policy, **self.roles, **passed}
        return chosen.pop("policy"), chosen

    def choose_args(self, passed: Mapping[str, Any] | None) -> dict[str, Any]:
        """The run's arguments, with the passed secrets and Python objects, which the run does not have."""
        passed = passed or {}
        secrets, objects = self.secret_args, self.object_args
        if others := sorted(passed.keys() - secrets - objects):
            raise InputError(
                f"Expected no arguments but secrets and Python objects when resuming, got {', '.join(others)}: "
                f"{self.path} has the others."
            )
        if missing_objects := sorted(objects - passed.keys()):
            example = ", ".join(f'"{name}": …' for name in missing_objects)
            raise InputError(
                f"The arguments {', '.join(missing_objects)} of {self.path} were Python objects: pass them again, with "
                f"rolltrace.play(resume={str(self.path)!r}, args={{{example}}})."
            )
        if missing_secrets := sorted(secrets - passed.keys()):
            options = " ".join(f"--arg {name}=VALUE" for name in missing_secrets)
            raise InputError(
                f"The arguments {', '.join(missing_secrets)} of {self.path} are secrets, which are not recorded: "
                f"pass {options}."
            )
        return {**self.args, **passed}

    def choose_recording(self, trace: Recording | Level | str | None) -> Recording:
        """The run's recording settings. Only a redaction function has to be passed again."""
        redact = trace.redact if isinstance(trace, Recording) else None
        if trace is not None and (redact is None or trace != Recording(redact=redact)):
            raise InputError("Expected only redact in trace= when resuming: the run has the other settings.")
        if redact is None and self.redact is not None:
            raise InputError(
                f"{self.path} was recorded with a redaction function: "
                "resume it with rolltrace.play(resume=…, trace=Recording(redact=…))."
            )
        if redact is not None and self.redact is None:
            raise InputError(f"{self.path} was recorded without a redaction function: leave trace= out.")
        return msgspec.structs.replace(self.recording, redact=redact)


def open_resumption(path: str | Path, *, force: bool = False) -> Resumption:
    """Read an interrupted run. Without `force`, raises `InputError` if a session may still be running."""
    if is_address(path):
        address = ObjectFiles(path)
        upload_leftovers(address, read_info(address).id)  # of a session that died on this machine
    with open_single_run(path) as run:
        info = run.info
        config = read_play_config(info, run.path, "resumed")
        if contains_redacted(info.config["sampling"]):
            raise InputError(
                f"The sampling settings of {run.path} have a secret, which is not recorded: it cannot be resumed."
            )
        if config.recording.level is Level.OFF:
            raise InputError(
                f"{run.path} was played with --trace off, so it is unknown which groups are finished: start a new run."
            )
        ledgers = run.ledgers()
        last_seen = _last_seen(run, ledgers)
        if not force:
            _require_interrupted(run.path, ledgers, last_seen)
        return Resumption(
            **msgspec.structs.asdict(config),
            path=run.path,
            run=info.id,
            sessions=tuple(sorted(last_seen)),
            groups=read_groups(run, config.plan),
            warnings=_compare_code(info, run.path),
        )


def read_groups(run: Run, plan: Plan) -> dict[int, RecordedGroups]:
    """The recorded groups of the plan's split, by iteration."""
    recorded: dict[int, RecordedGroups] = {}
    rules = {"retried": [layer.value for layer in RETRIED_LAYERS], "retries": plan.retries}
    for row in run.sql(_GROUPS, {"split": plan.split, **rules}).dicts():
        is_complete = row["members"] == row["indexes"] == row["expected"] and row["sessions"] == 1
        is_finished = is_complete and not (row["cancelled"] or row["ungraded"] or row["to_retry"])
        key = GroupKey(plan.split, row["iteration"], row["env"], row["group"])
        recorded.setdefault(key.iteration, {})[key] = RecordedGroup(row["members"], is_finished)
    return recorded


def _last_seen(run: Run, ledgers: Mapping[str, Ledger]) -> dict[str, Any]:
    """When each session last wrote. A session that died early has rollouts but no ledger."""
    seen = {session: ledger.written_at for session, ledger in ledgers.items()}
    for session, ended in run.sql("select session, max(ended_at) from every_rollout group by session"):
        seen.setdefault(session, ended.replace(tzinfo=UTC))
    return seen


def _require_interrupted(path: Path, ledgers: Mapping[str, Ledger], last_seen: Mapping[str, Any]) -> None:
    now, continued = utc_now(), continued_sessions(ledgers.values())
    for session, at in last_seen.items():
        # A session without a ledger began recently, or died before its first ledger.
        ledger = ledgers.get(session) or Ledger(run="", session=session, written_at=at)
        if session_state(ledger, now, continued) is SessionState.RUNNING:
            age = (now - at).total_seconds()
            raise InputError(
                f"Expected an interrupted run, but session {session} of {path} wrote {max(0.0, age):.0f} s ago and may "
                f"still be running. If it has died, wait until {SILENT_SECONDS:.0f} s have passed, or use --force "
                "(force=True)."
            )


def _compare_code(info: RunInfo, path: Path) -> tuple[str, ...]:
    now = code_revision()
    if info.code_revision is None or now is None or info.code_revision == now:
        return ()
    changed = f"The code has changed since {path} was made, from revision {info.code_revision} to {now}."
    return (f"{changed} New groups may differ from the recorded ones.",)
