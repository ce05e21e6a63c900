"""The embedded model for tests, or the reason why there is none."""

import pytest

from rolltrace.errors import InputError


def embedded_model(**settings):
    """A policy of the embedded model; the test is skipped where that is not installed.

    The settings are the same in most tests, so that a process has one server.
    """
    local = pytest.importorskip("rolltrace.policies.local", reason="the client's package is not installed")
    try:
        return local.local_policy(**{"slots": 2, "context_length": 2048, **settings})
    except InputError as missing:
        pytest.skip(str(missing))
