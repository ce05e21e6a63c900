"""Audits by name: built in, added by packages, or a user's own."""

from collections.abc import Collection, Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from rolltrace.check.audit import Audit, AuditInput, Finding, Severity
from rolltrace.check.audits import files, identity, ledgers, rewards, scores
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.imports import import_object

ENTRY_POINTS = "rolltrace.checks"
"""The entry-point group through which packages add audits."""

_UNUSABLE = "An audit that an installed package adds cannot be used. Mend or uninstall the package."

_MODULES: tuple[ModuleType, ...] = (files, ledgers, identity, rewards, scores)


def built_in_audits() -> list[Audit]:
    """The audits that come with Rolltrace, in the order in which a report has them."""
    return [value for module in _MODULES for value in vars(module).values() if isinstance(value, Audit)]


def list_audits(add: Iterable[str | Audit] = ()) -> list[Audit]:
    """All audits: built in, added by packages, and those given, as objects or as `package.module:name`."""
    found = {audit.name: audit for audit in built_in_audits()}
    for point in entry_points(group=ENTRY_POINTS):
        added = _load_added(point, taken=found.keys())
        found[added.name] = added
    for given in add:
        own = _load(given) if isinstance(given, str) else given
        if own.name in found:
            raise InputError(f"Expected an audit with a name of its own, got another {own.name!r}: rename yours.")
        found[own.name] = own
    return list(found.values())


def select_audits(only: Iterable[str] = (), skip: Iterable[str] = (), add: Iterable[str | Audit] = ()) -> list[Audit]:
    """Those of all audits that are wanted; a name that is none of them is an error."""
    found = list_audits(add)
    names = [audit.name for audit in found]
    wanted, unwanted = set(only), set(skip)
    for name in sorted((wanted | unwanted) - set(names)):
        raise UnknownNameError.for_name("audit", name, names)
    return [audit for audit in found if (not wanted or audit.name in wanted) and audit.name not in unwanted]


def _load_added(point: EntryPoint, taken: Collection[str]) -> Audit:
    """The audit that a package adds, or one that says why it cannot be used: no other must suffer for it."""
    source = point.value.partition("[")[0].strip()
    try:
        added = _load(source)
        if added.name in taken:
            raise InputError(f"The name {added.name!r} is taken by another audit.")
    except InputError as error:
        return Audit(f"{point.name} ({source})", Severity.ERROR, _UNUSABLE, AuditInput.RUN, _Unusable(error))
    return added


class _Unusable:
    """Stands in for an audit that could not be loaded."""

    def __init__(self, error: InputError) -> None:
        self._error = error

    def __call__(self, run: object) -> Iterable[Finding]:
        raise self._error


def _load(spec: str) -> Audit:
    found = import_object(spec, "audit")
    if not isinstance(found, Audit):
        raise InputError(
            f"Expected {spec!r} to be an audit, got {found!r}: decorate it with `rolltrace.check.audit.audit`."
        )
    return found
