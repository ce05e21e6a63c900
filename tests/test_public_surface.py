"""The public surface is a list, importing it is cheap, and it needs no extra."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rolltrace

pytestmark = pytest.mark.core

PUBLIC = """
Criterion Game GameGroup GameResult GameTable GroupGrade GroupGrader PreferenceGrader PromptOnlyEnv RubricGrader ask
with_roles
EnvError EnvFailure GraderError Group GroupMember Judge PolicyJudge ProblemGroup PromptOnlyGroup RoleError SingleUse
Completion Env EnvGroupBuilder FailFast Grade Grader Hooks KeepViable Layer Limits MemorySink Message MessageEnv
Level MessageEnvAdapter MessageStepResult Observation Part Policy ProblemEnv Recording Request Rollout
RolloutTrace RolltraceError Run Runner Sampling Score Sink Status Step StepResult StopReason StoppedBy Tasks Termination
Tool ToolCall ToolEnv ToolResult ToolSpec Turn __version__ check_env create_run open_run play
play_async redact_pattern
Failure RolloutRecorder Tokens Usage current_rollout record_calls stable_id
LiveMetrics Tracker log_metrics
AnswerGrader NotGradableError RegradeSummary regrade regrade_async
ReplayReport replay_run
"""


def test_the_surface_is_this_list():
    """Adding or removing a public name is a decision: it changes this list."""
    assert sorted(rolltrace.__all__) == sorted(PUBLIC.split())
    assert dir(rolltrace) == sorted(PUBLIC.split())


def test_every_public_name_exists():
    """Each name exists, and is defined where the type stubs say."""
    tree = ast.parse(Path(rolltrace.__file__).with_suffix(".pyi").read_text())
    told = {
        alias.name: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    for name in rolltrace.__all__:
        assert getattr(rolltrace, name) is getattr(sys.modules[told[name]], name)
    assert set(told) == set(rolltrace.__all__)


@pytest.mark.parametrize(("name", "own"), [("play", "workers"), ("regrade", "where")])
def test_help_shows_the_parameters_of_both_twins(name, own):
    """The parameters are defined once, and neither shows `*args`."""
    twins = [inspect.signature(getattr(rolltrace, one)) for one in (name, f"{name}_async")]
    assert twins[0] == twins[1]
    assert twins[0].parameters[own].default is None
    with pytest.raises(TypeError, match="Unexpected keyword argument 'wrong'"):
        getattr(rolltrace, name)("arithmetic", "exact", **({"out": "run"} if name == "play" else {}), wrong=1)


def test_an_unknown_name_is_an_attribute_error():
    """The lazy package raises AttributeError like any module."""
    assert not hasattr(rolltrace, "Enviroment")


def loaded_by(statement):
    """The top-level modules that a statement loads in a fresh interpreter."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_loads_next_to_nothing():
    """`import rolltrace` loads none of the subpackages, so that it stays cheap."""
    loaded = {name for name in loaded_by("import rolltrace") if name.startswith("rolltrace")}
    assert loaded == {"rolltrace", "rolltrace.version"}


def test_the_whole_surface_needs_no_extra():
    """Using every public name loads neither an extra nor the terminal's packages."""
    loaded = {name.partition(".")[0] for name in loaded_by("from rolltrace import *")}
    extras = {
        "numpy",
        "pydantic",
        "pyarrow",
        "torch",
        "ray",
        "transformers",
        "textarena",
        "reasoning_gym",
        "math_verify",
    }
    assert not loaded & (extras | {"rich", "click", "docstring_parser", "duckdb"})
