"""Audits by name: built in, added by packages, or a user's own."""

from collections.abc import Collection, Iterable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from rolltrace.check.audit import Audit, AuditInput, Finding, Severity
from rolltrace.check.audits import files, identity, ledgers, rewards, scores
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.imports import import_object

ENTRY_POINTS = "rolltrace.checks"
"""The entry-point group in which packages add audits."""

_UNUSABLE = "An audit that an installed package adds cannot be loaded. Fix or uninstall the package."

_MODULES: tuple[ModuleType, ...] = (files, ledgers, identity, rewards, scores)


def built_in_audits() -> list[Audit]:
    """The audits that come with Rolltrace, in the order in which a report has them."""
    return [value for module in _MODULES for value in vars(module).values() if isinstance(value, Audit)]


def select_audits(only: Iterable[str] = (), skip: Iterable[str] = (), add: Iterable[str | Audit] = ()) -> list[Audit]:
    """All audits, or those of `only`, without those of `skip`; an unknown name is an error.

    These are the built-in ones, those of packages, and those of `add`, as objects or as `package.module:name`.
    """
    audits = {audit.name: audit for audit in built_in_audits()}
    for point in entry_points(group=ENTRY_POINTS):
        added = _load_added(point, used_names=audits.keys())
        audits[added.name] = added
    for one in add:
        own = _load(one) if isinstance(one, str) else one
        if own.name in audits:
            raise InputError(f"Expected an audit with a unique name, got another {own.name!r}: rename yours.")
        audits[own.name] = own
    included, excluded = set(only), set(skip)
    for name in sorted((included | excluded) - audits.keys()):
        raise UnknownNameError.for_name("audit", name, audits)
    return [audits[name] for name in audits if (not included or name in included) and name not in excluded]


def _load_added(point: EntryPoint, used_names: Collection[str]) -> Audit:
    """The audit that a package adds, or one that fails with the reason why it cannot be loaded."""
    source = point.value.partition("[")[0].strip()
    try:
        added = _load(source)
        if added.name in used_names:
            raise InputError(f"Another audit has the name {added.name!r}.")
    except InputError as error:
        return Audit(f"{point.name} ({source})", Severity.ERROR, _UNUSABLE, AuditInput.RUN, partial(_raise, error))
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
