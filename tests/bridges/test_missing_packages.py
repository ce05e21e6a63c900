"""A bridge whose framework is not installed says in one sentence what to install."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("bridge", "blocked", "package"), [("tinker", "tinker_cookbook", "tinker-cookbook")])
def test_the_missing_package_is_named(bridge, blocked, package):
    """Using the bridge raises `InputError`; importing it does not."""
    code = f"import sys; sys.modules[{blocked!r}] = None\nfrom rolltrace.bridges.{bridge} import *\nrecord(None, None)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("rolltrace.errors.InputError: ")
    assert last.endswith(f": pip install {package}.")
