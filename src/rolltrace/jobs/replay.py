"""Makes a policy of a recorded run, which says again what was said in it."""

from pathlib import Path

from rolltrace.errors import InputError
from rolltrace.policies.replay import ReplayPolicy
from rolltrace.store.reader import RunReader
from rolltrace.store.sessions import Sessions
from rolltrace.trace.text_transform import has_hashed_text


def replay_policy(path: str | Path = "", *, strict: bool = True) -> ReplayPolicy:
    """The policy that `replay:RUN` names; a run without a rollout, or without text, is refused."""
    if not str(path):
        raise InputError("Expected a recorded run to replay, got none: give replay:RUN, such as replay:runs/first.")
    reader = RunReader(path)
    first = next(reader.rollouts(), None)
    if first is None:
        raise InputError(f"Expected a run with rollouts to replay at {path}, got one that has none.")
    if has_hashed_text(first) and all(map(has_hashed_text, reader.rollouts())):
        raise InputError(
            f"Expected a run with its text to replay at {path}, got one recorded as numbers: record with --trace full."
        )
    supersedes = Sessions(reader.ledgers().values()).supersedes
    return ReplayPolicy(reader, name=f"replay:{Path(path).name}", strict=strict, supersedes=supersedes)
