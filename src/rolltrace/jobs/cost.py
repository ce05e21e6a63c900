"""What recording costs: the same rollouts, recorded once more and timed."""

import time
from collections.abc import Iterable

from msgspec.structs import asdict

from rolltrace.store.create import create_run
from rolltrace.store.writer import RunWriter
from rolltrace.temp_folders import temporary_folder
from rolltrace.trace.rollout import Header, Outcome, Rollout

_HEADER = Header.__struct_fields__
_OUTCOME = tuple(Outcome.__annotations__)


def recording_seconds(rollouts: Iterable[Rollout]) -> float:
    """The seconds of computing, of all threads, that it takes to record these and bring them to the disk."""
    kept = list(rollouts)
    with temporary_folder() as place:
        started = time.process_time()
        with create_run(place / "again") as writer:
            for rollout in kept:
                _record(writer, rollout)
        return time.process_time() - started


def _record(writer: RunWriter, rollout: Rollout) -> None:
    """Tell a rollout to a draft as a runner does, step by step."""
    header = Header(**{name: getattr(rollout, name) for name in _HEADER})
    rollout_builder = writer.begin(header)
    for step in rollout.steps:
        trace = step.trace
        rollout_builder.replace(trace.prompt)
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(
            trace.policy_response,
            reward=step.reward,
            env_reward=step.env_reward,
            reward_data=step.reward_data,
            env_state=step.env_state,
            extra=step.extra,
            metrics=step.metrics,
            logs=step.logs,
            tools=() if step.tools is None else rollout.tools[step.tools],
            sampling=None if step.sampling is None else rollout.sampling[step.sampling],
            termination=step.termination,
            parse_error=step.parse_error,
            raw=step.raw,
            policy_version=step.policy_version,
            usage=step.usage,
            seconds=step.seconds,
        )
        if step.env_failure is not None:
            rollout_builder.set_env_failure(step.env_failure)
    rollout_builder.replace(rollout.conversation)
    rollout_builder.calls.extend(rollout.calls)
    rollout_builder.grade = rollout.grade
    if rollout.unplayed is not None:
        rollout_builder.set_no_turn_result(**asdict(rollout.unplayed))
    outcome = {name: getattr(rollout, name) for name in _OUTCOME} | {"reward": rollout.line_reward}
    writer.end(rollout_builder, Outcome(**outcome))  # type: ignore[typeddict-item]
