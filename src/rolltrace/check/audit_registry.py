"""Audits by name: built in, added by packages, or a user's own."""

import sys
from collections.abc import Collection, Iterable
from functools import lru_cache, partial
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from msgspec.structs import replace

from rolltrace.check.audit import Audit, Finding, Severity, audit
from rolltrace.check.audits import (
    advantages,
    alignment,
    collapse,
    environment,
    files,
    grader,
    identity,
    ledgers,
    reward_terms,
    reward_values,
    rewards,
    sampling,
    scores,
    signal,
    tokens,
)
from rolltrace.check.settings import CheckSettings, check_names
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.imports import import_object

ENTRY_POINTS = "rolltrace.checks"
"""The entry-point group in which packages add audits."""

_UNUSABLE = "An audit that an installed package adds cannot be loaded."
_REINSTALL = "Fix or uninstall the package."

FAMILIES: dict[str, tuple[ModuleType, ...]] = {
    "integrity": (files, ledgers, identity, scores),
    "alignment": (alignment, advantages),
    "reward": (rewards, reward_terms, reward_values),
    "environment": (environment,),
    "signal": (signal,),
    "collapse": (collapse,),
    "grader": (grader,),
    "sampling": (sampling, tokens),
}
"""The modules of each family of audits, in the order in which a report has them."""


def built_in_audits() -> list[Audit]:
    """The audits that come with Rolltrace, in the order in which a report has them."""
    return [
        replace(value, family=family)
        for family, modules in FAMILIES.items()
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Audit)
    ]


def select_audits(
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    add: Iterable[str | Audit] = (),
    settings: CheckSettings | None = None,
) -> list[Audit]:
    """All audits, or those of `only`, without those of `skip`, also by family; an unknown name is an error.

    These are the built-in ones, those of packages, and those of `add`, as objects or as `package.module:name`.
    """
    settings = settings or CheckSettings()
    audits = {one.name: one for one in built_in_audits()}
    for point in _entry_points(tuple(sys.path)):
        added = _load_added(point, used_names=audits.keys())
        audits[added.name] = added
    for given in add:
        own = _load(given) if isinstance(given, str) else given
        if own.name in audits:
            raise InputError(f"Expected an audit with a unique name, got another {own.name!r}: rename yours.")
        audits[own.name] = own
    check_names(settings, audits)
    included, excluded = {*only} or {*settings.only}, {*skip, *settings.skip}
    families = {one.family for one in audits.values()}
    for name in sorted((included | excluded) - audits.keys() - families):
        raise UnknownNameError.for_name("audit", name, audits)
    return [
        one
        for one in audits.values()
        if (not included or {one.name, one.family} & included) and not {one.name, one.family} & excluded
    ]


@lru_cache(maxsize=1)
def _entry_points(_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The audits of the packages on this path: finding them reads a file of each package, so it is done once."""
    return tuple(entry_points(group=ENTRY_POINTS))


def _load_added(point: EntryPoint, used_names: Collection[str]) -> Audit:
    """The audit that a package adds, or one that fails with the reason why it cannot be loaded."""
    source = point.value.partition("[")[0].strip()
    try:
        added = _load(source)
        if added.name in used_names:
            raise InputError(f"Another audit has the name {added.name!r}.")
    except InputError as error:
        unusable = audit(Severity.ERROR, _UNUSABLE, _REINSTALL, name=f"{point.name} ({source})")
        return unusable(partial(_raise, error))
    return added


def _raise(error: InputError, _run: object) -> Iterable[Finding]:
    raise error


def _load(spec: str) -> Audit:
    loaded = import_object(spec, "audit")
    if not isinstance(loaded, Audit):
        raise InputError(
            f"Expected {spec!r} to be an audit, got {loaded!r}: decorate it with `rolltrace.check.audit.audit`."
        )
    return loaded
