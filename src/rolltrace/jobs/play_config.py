"""Reads from a run how it was played: its env, arguments, policies, plan and recording settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.errors import InputError
from rolltrace.jobs.plan import Plan, plan_from_config
from rolltrace.secret_redaction import PLACEHOLDER
from rolltrace.store.layout import RunInfo
from rolltrace.store.recording import Recording


class PlayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was played, from the config in its `run.json`."""

    env: str
    args: dict[str, Any]
    policy: str
    roles: dict[str, str]
    objects: tuple[str, ...]
    """Which of env, policy, roles and arguments were Python objects, which cannot be loaded by name."""
    plan: Plan
    recording: Recording
    redact: str | None
    """The name of the redaction function, if there was one."""

    @property
    def secret_args(self) -> set[str]:
        """The names of the arguments with a secret, which the run does not have."""
        return {name for name, value in self.args.items() if contains_redacted(value)}

    @property
    def object_args(self) -> set[str]:
        """The names of the arguments that were Python objects."""
        return {name for name in self.args if f"args.{name}" in self.objects}


def read_play_config(info: RunInfo, path: Path, action: str) -> PlayConfig:
    """Read the config of a run. If it does not say how to play it, `InputError` says that it cannot be `action`."""
    config: Mapping[str, Any] = info.config
    try:
        plan = plan_from_config(config)
        settings = {name: value for name, value in config["recording"].items() if name in Recording.__struct_fields__}
        recording = Recording(**{**settings, "redact": None})
        for name, kind in (("env", str), ("policy", str), ("args", dict), ("roles", dict), ("objects", list)):
            if not isinstance(config[name], kind):
                raise TypeError(name)
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(
            f"Expected a run that `rolltrace run` or rolltrace.play made, got {path}, whose config does not say how to "
            f"play it: another program, an older version or the demo made it. Such a run cannot be {action}."
        ) from error
    return PlayConfig(
        env=config["env"],
        args=config["args"],
        policy=config["policy"],
        roles=config["roles"],
        objects=tuple(config["objects"]),
        plan=plan,
        recording=recording,
        redact=config["recording"].get("redact"),
    )


def contains_redacted(value: Any) -> bool:
    """Whether a value has a secret that was replaced by a placeholder."""
    return PLACEHOLDER.encode() in msgspec.json.encode(value)
