import re

import pytest

from rolltrace.arguments import Argument
from rolltrace.envs.arithmetic import ArithmeticTasks
from rolltrace.envs.registry import BUILT_IN, FAMILIES, list_envs, list_members, load_env
from rolltrace.errors import InputError, UnknownNameError

pytestmark = pytest.mark.core

OWN = """
from rolltrace.envs.env import Env, Observation, StepResult

class Own(Env):
    '''Mine, all mine.'''
    def __init__(self, size: int = 1):
        self.size = size
    async def initial_observation(self):
        return Observation([{"role": "user", "content": "hello"}])
    async def step(self, completion):
        return StepResult(0.0, done=True)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Creates an installed package: modules, and entry points that name them."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, modules, points=""):
        for module, text in modules.items():
            (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rolltrace.envs]\n{points}")

    return write


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_loads(name):
    """Each built-in has tasks that know its name, and needs no argument."""
    tasks = load_env(name)
    builder = tasks.builder(0, episodes=3, seed=0)
    assert (tasks.env, builder.env, builder.episodes) == (name, name, 3)


def test_arguments_are_converted():
    """Text from a command line and Python values mean the same."""
    for args in ({"difficulty": "3", "format_coef": "0.5"}, {"difficulty": 3, "format_coef": 0.5}):
        tasks = load_env("arithmetic", args)
        assert isinstance(tasks, ArithmeticTasks)
        assert (tasks.difficulty, tasks.format_coef) == (3, 0.5)


@pytest.mark.parametrize(
    ("spec", "args", "message"),
    [
        ("arithmetics", {}, "There is no environment 'arithmetics'. Did you mean 'arithmetic'?"),
        ("arithmetic", {"dificulty": "1"}, "no argument of arithmetic 'dificulty'. Did you mean 'difficulty'?"),
        ("arithmetic", {"difficulty": "hard"}, "Expected `int` for argument 'difficulty' of arithmetic, got 'hard'."),
        ("arithmetic", {"difficulty": "9"}, "Expected difficulty from 1 to 5 for arithmetic, got 9."),
        ("no_such_package.envs:Own", {}, "There is no module 'no_such_package'"),
        ("rolltrace.envs.arithmetic:ArithmeticTask", {}, "Did you mean 'ArithmeticTasks'?"),
    ],
)
def test_what_does_not_exist_suggests_the_nearest(spec, args, message):
    """Unknown names and values are refused with the nearest valid ones."""
    with pytest.raises(InputError) as caught:
        load_env(spec, args)
    assert message in str(caught.value)


def test_an_env_of_ones_own_is_named_by_module(package):
    """Any importable class can be played."""
    package("registry-own", {"registry_own": OWN})
    tasks = load_env("registry_own:Own", {"size": "2"})
    builder = tasks.builder(0, episodes=1, seed=0)
    assert (builder.env, builder.env_args) == ("registry_own:Own", {"size": 2})


def test_packages_add_names(package):
    """A name that a package adds is listed, loaded and suggested like a built-in."""
    package("registry-added", {"registry_added": OWN}, "mine = registry_added:Own\n")
    assert load_env("mine").env == "mine"
    [info] = [info for info in list_envs() if info.name == "mine"]
    assert (info.summary, info.error) == ("Mine, all mine.", None)
    assert info.arguments == (Argument("size", "int", "1"),)
    with pytest.raises(UnknownNameError, match="Did you mean 'mine'"):
        load_env("minee")


def test_a_broken_package_does_not_break_the_listing(package):
    """A package that cannot be imported is listed with its error, and raises only when it is used."""
    points = "bad = registry_broken:Own\ngone = registry_nowhere:Own\narithmetic = registry_broken:Own\nodd = [what\n"
    package("registry-broken", {"registry_broken": "1 / 0"}, points)
    infos = {(info.name, info.source): info for info in list_envs()}
    errors = {name: info.error for (name, _), info in infos.items() if info.error}
    assert "ZeroDivisionError" in errors["bad"]
    assert "no module 'registry_nowhere'" in errors["gone"]
    assert "taken by a built-in" in errors["arithmetic"]
    assert "odd" in errors
    assert load_env("arithmetic").env == "arithmetic"
    with pytest.raises(InputError, match="ZeroDivisionError"):
        load_env("bad")


def test_built_ins_are_listed_with_a_line_each():
    """Each built-in is listed with a description."""
    infos = [info for info in list_envs() if info.name in BUILT_IN]
    assert [info.name for info in infos] == sorted(BUILT_IN)
    assert all(info.summary and info.error is None and "\n" not in info.summary for info in infos)


def test_families_list_their_members():
    """Each family lists its environments by their full names; an unknown family is refused with the known ones."""
    for family, member, package in (
        ("reasoning_gym", "reasoning_gym:leg_counting", "reasoning_gym"),
        ("textarena", "textarena:TicTacToe-v0", "textarena"),
    ):
        pytest.importorskip(package)
        names = list_members(family)
        assert member in names
        assert names == sorted(set(names))
        assert load_env(member).env == member
    with pytest.raises(UnknownNameError, match="Did you mean 'textarena'"):
        list_members("textarenas")


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.package is not None])
def test_families_say_what_to_install(family, monkeypatch):
    """Without its package, a family is listed with what installs it, and is refused with the same words."""
    monkeypatch.setattr("rolltrace.envs.registry.find_spec", lambda package: None)
    hint = f"pip install 'rolltrace[{family.replace('_', '-')}]'"
    if family == "gem":  # not an extra, because it pins a version of msgspec that is too old
        hint = "pip install --no-deps gem-llm"
    with pytest.raises(InputError, match=re.escape(hint)):
        load_env(f"{family}:anything")
    info = next(info for info in list_envs() if info.name == f"{family}:NAME")
    assert hint in info.error
    assert "name" not in [argument.name for argument in info.arguments]
