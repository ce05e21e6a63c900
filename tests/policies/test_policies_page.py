"""The page about the policies names every kind, and every argument of each."""

import re
from functools import partial
from pathlib import Path

import pytest

from rolltrace.arguments import list_arguments
from rolltrace.imports import import_object
from rolltrace.jobs.open_policy import SCRIPTED_POLICIES
from rolltrace.policies.policy_specs import POLICY_KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()


def test_every_kind_has_its_row():
    """Every kind of policy has a row in the table."""
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    for kind in (*POLICY_KINDS, "replay", *(f"scripted:{name}" for name in SCRIPTED_POLICIES)):
        assert any(f"`{kind}" in row for row in rows), kind


@pytest.mark.parametrize("kind", POLICY_KINDS)
def test_every_argument_is_told(kind):
    """Every argument is documented on the page."""
    factory = partial(import_object(POLICY_KINDS[kind], "policy"), "text after the colon")
    for argument in list_arguments(factory):
        assert re.search(rf"`[^`]*\b{argument.name}\b[^`]*`", PAGE), (kind, argument.name)
