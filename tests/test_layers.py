"""Rooms import downward only, absolutely, and without cycles."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rolltrace"
MODULES = sorted(path.relative_to(SOURCE.parent) for path in SOURCE.rglob("*.py"))

BOTTOM = {
    "cancellation", "errors", "version", "seeds", "expressions", "arguments", "imports", "rollout_clock",
    "secret_redaction", "temp_folders", "terminal_text", "processes",
}  # fmt: skip
"""Modules of the root that stand under every room; among themselves they need `errors` only, or little more."""
PLAYING = ["trace", "policies", "graders", "envs", "rollout", "testing"]
KEEPING = ["trace", "store", "query", "check", "viewer"]


def below(chain: list[str], room: str) -> set[str]:
    return BOTTOM | set(chain[: chain.index(room)])


MAY_IMPORT = {
    "errors": set(),
    **{name: {"errors"} for name in BOTTOM - {"errors"}},
    "processes": {"errors", "temp_folders"},
    **{room: below(PLAYING, room) for room in PLAYING},
    **{room: below(KEEPING, room) for room in KEEPING},
    "bridges": BOTTOM | {*PLAYING, "store"},
    "metrics": BOTTOM | {"trace", "store", "query"},
    "jobs": BOTTOM | {*PLAYING, *KEEPING, "metrics"} - {"viewer"},
    "cli": BOTTOM | {*PLAYING, *KEEPING, "jobs", "bridges"},
    "__main__": {"cli"},
    "__init__": {"version"},
}
"""What each room, and each module of the root, may import besides itself."""


def room_of(module: Path) -> str:
    return module.parts[1].removesuffix(".py")


@cache
def tree_of(module: Path) -> ast.Module:
    return ast.parse((SOURCE.parent / module).read_text())


def imports_of(tree: ast.AST) -> list[tuple[int, str]]:
    """Every module that is imported, also inside functions and for type checking, with its line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{base}.{alias.name}" if base == "rolltrace" else base) for alias in node.names]
    return found


def upward(module: Path, tree: ast.AST) -> list[str]:
    """The imports of a module that its room forbids."""
    room = room_of(module)
    wrong = []
    for line, name in imports_of(tree):
        if not name.startswith("rolltrace"):
            continue
        parts = name.split(".")
        is_ours = len(parts) > 1 and ((SOURCE / parts[1]).is_dir() or (SOURCE / f"{parts[1]}.py").is_file())
        target = parts[1] if is_ours else "__init__"
        if target != room and target not in MAY_IMPORT[room]:
            wrong.append(f"{module}:{line} imports {name}: {room} stands below {target}, or beside it")
    return wrong


def test_rooms_import_downward_only():
    """No module imports from a room above its own or beside it, not even inside a function."""
    unknown = [str(module) for module in MODULES if room_of(module) not in MAY_IMPORT]
    assert unknown == [], "the layers do not name the rooms of these modules"
    assert [line for module in MODULES for line in upward(module, tree_of(module))] == []


def test_imports_are_absolute():
    """A name says where it comes from."""
    imports = [(module, line, name) for module in MODULES for line, name in imports_of(tree_of(module))]
    assert [f"{module}:{line}" for module, line, name in imports if name.startswith(".")] == []


def test_no_import_of_ours_is_hidden_in_a_function():
    """Only heavy packages of others are imported late; our own modules need no such trick."""
    # The command line starts quickly because a verb loads what it needs when it is run.
    trees = {module: tree_of(module) for module in MODULES if room_of(module) != "cli"}
    functions = [
        (module, node)
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    imports = [(module, line, name) for module, function in functions for line, name in imports_of(function)]
    assert [f"{module}:{line} {name}" for module, line, name in imports if name.startswith("rolltrace")] == []


def test_modules_import_without_cycles():
    """Within a room too, modules have an order in which they can be read."""
    graph: dict[str, set[str]] = {}
    names = {".".join(module.with_suffix("").parts).removesuffix(".__init__") for module in MODULES}
    for module in MODULES:
        name = ".".join(module.with_suffix("").parts).removesuffix(".__init__")
        graph[name] = {target for _, target in imports_of(tree_of(module)) if target in names} - {name}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("rolltrace/trace/x.py", "import rolltrace.store.writer"),
        ("rolltrace/rollout/x.py", "def late():\n    from rolltrace.store.writer import RunWriter"),
        ("rolltrace/store/x.py", "from rolltrace.rollout.memory_sink import Sink"),
        ("rolltrace/graders/x.py", "from rolltrace import envs"),
        ("rolltrace/trace/x.py", "from rolltrace import Message"),
        ("rolltrace/seeds.py", "from rolltrace.trace.message import Message"),
        ("rolltrace/envs/x.py", "if TYPE_CHECKING:\n    from rolltrace.rollout.limits_and_penalties import Limits"),
    ],
)
def test_the_check_sees_an_upward_import(module, code):
    """The rule above fails where it should."""
    assert len(upward(Path(module), ast.parse(code))) == 1


def test_the_check_allows_a_downward_import():
    """The rule above does not fail where it should not."""
    allowed = "import json\nfrom rolltrace.trace.codec import add_checksum\nfrom rolltrace.errors import InputError"
    assert upward(Path("rolltrace/store/x.py"), ast.parse(allowed)) == []
