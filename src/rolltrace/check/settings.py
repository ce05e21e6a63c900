"""The settings of a check: thresholds, reward ranges and an independent measure, from a TOML file."""

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from rolltrace.check.audit import Audit
from rolltrace.errors import InputError, UnknownNameError

ANY_ENV = "*"
"""The name that stands for every env that is not named."""


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file states for one audit; None: the default."""

    threshold: float | None = None
    min_sample: Annotated[int, msgspec.Meta(ge=0)] | None = None


class CheckSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a run that its records do not say."""

    fail_on: Literal["error", "warning", "info", "never"] | None = None
    """The lowest severity that makes the check fail; None: as on the command line."""
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    """Names of audits, or of families of audits."""
    measure: str | None = None
    """An independent measure of quality that the reward should follow: the name of a metric, a score, or a split."""
    reward_range: dict[str, tuple[float, float]] = {}
    """By env, or `*` for all others, the lowest and the highest reward that it can give."""
    replaces_history: tuple[str, ...] = ()
    """The envs that replace their history on purpose, so that prompts need not continue those before."""
    tokenizer: str | None = None
    """The policy's tokenizer: a folder with `tokenizer.json`, or that file."""
    audits: dict[str, AuditSettings] = {}
    """By the name of an audit."""

    def range_of(self, env: str) -> tuple[float, float] | None:
        """The declared range of an env's rewards."""
        return self.reward_range.get(env, self.reward_range.get(ANY_ENV))


def load_settings(path: str | Path) -> CheckSettings:
    """Read a settings file; see `docs/checks.md`."""
    try:
        with Path(path).open("rb") as file:
            settings = msgspec.convert(tomllib.load(file), CheckSettings)
    except OSError as error:
        raise InputError(f"Expected a settings file at {path}, but it cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"Expected settings of a check in {path}, got an error: {error}.") from error
    for env, (lowest, highest) in settings.reward_range.items():
        if not lowest <= highest:
            raise InputError(f"Expected a range of rewards from low to high for {env}, got {lowest} to {highest}.")
    for name, own in settings.audits.items():
        if own.threshold is not None and not math.isfinite(own.threshold):
            raise InputError(
                f"Expected a finite threshold for {name}, got {own.threshold}: `skip` leaves an audit out."
            )
    return settings


def check_names(settings: CheckSettings, audits: dict[str, Audit]) -> None:
    """Raise an error for settings of audits that do not exist, or that have no threshold."""
    for name, own in settings.audits.items():
        if name not in audits:
            raise UnknownNameError.for_name("audit", name, audits)
        if audits[name].threshold is None:
            stated: dict[str, Any] = {
                key: value for key, value in msgspec.to_builtins(own).items() if value is not None
            }
            raise InputError(f"Expected no settings for {name}, which has no threshold, got {stated}.")
