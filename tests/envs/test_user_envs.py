import pickle

import pytest

from rolltrace.envs.arithmetic import ArithmeticTasks
from rolltrace.envs.env import Env, EnvGroupBuilder, Observation, StepResult
from rolltrace.envs.message_env import MessageEnv, MessageEnvAdapter
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.user_envs import as_tasks
from rolltrace.errors import EnvError, InputError, UnknownNameError


class Own(Env):
    def __init__(self, size: int = 1):
        self.size = size

    async def initial_observation(self):
        return Observation([{"role": "user", "content": "hello"}])

    async def step(self, completion):
        return StepResult(0.0, done=True)


class Seeded(Own):
    def __init__(self, seed: int, episode: int, size: int = 1):
        super().__init__(size)
        self.seed, self.episode = seed, episode


class Exploding(Own):
    def __init__(self):
        raise ValueError("no licence")


class Unfinished(Env):
    async def initial_observation(self):
        return Observation([])


class Chat(MessageEnv):
    async def initial_observation(self):
        return []

    async def step(self, message):
        raise NotImplementedError


class Builder(EnvGroupBuilder):
    def __init__(self, size: int = 1):
        self.size = size

    async def make_episode(self, number):
        return [Own(self.size)]


class Sealed(Builder):
    @property
    def episodes(self):
        return 3


def make_own(size: int = 1) -> Own:
    return Own(size)


def make_class(size: int = 1):
    return Own


def make_one():
    return Own()


def make_builder(size: int):
    return Builder(size)


def make_nothing():
    return None


def make_function():
    return make_own


async def make_later():
    return Own


def build(found, args=None, **options):
    return as_tasks(found, "mine:it", args or {}).builder(0, **{"episodes": 2, "seed": 0, **options})


async def make(builder, number=0):
    """The env of an episode, from a builder that was pickled."""
    [env] = await pickle.loads(pickle.dumps(builder)).make_episode(number)
    return env


@pytest.mark.parametrize("found", [Own, make_own])
async def test_an_env_class_or_factory_is_one_task(found):
    """The env is made for each episode, with converted arguments."""
    tasks = as_tasks(found, "mine:it", {"size": "3"})
    builder = tasks.builder(0, episodes=4, seed=0)
    assert (tasks.count, builder.env, builder.task, builder.episodes) == (1, "mine:it", found.__name__, 4)
    assert builder.env_args == {"size": 3}
    env = await make(builder)
    assert (type(env), env.size) == (Own, 3)
    assert await make(builder) is not env


async def test_seed_and_episode_are_passed_where_they_are_parameters():
    """A constructor with a seed gets one per task, equal for all episodes, so that a group plays one task."""
    tasks = as_tasks(Seeded, "mine:it", {})
    assert tasks.count is None
    builders = [tasks.builder(number, episodes=2, seed=0) for number in (0, 0, 1)]
    first, second, other = [await make(builder, number) for builder, number in zip(builders, (0, 1, 0), strict=True)]
    assert first.seed == second.seed == builders[0].seed
    assert first.seed != other.seed
    assert (first.episode, second.episode) == (0, 1)
    assert builders[0].task != builders[2].task


async def test_a_seed_that_was_given_is_kept():
    """An explicit seed wins, and leaves one task."""
    tasks = as_tasks(Seeded, "mine:it", {"seed": "5"})
    assert tasks.count == 1
    assert (await make(tasks.builder(0, episodes=1, seed=0))).seed == 5


async def test_an_exception_in_the_constructor_fails_the_episode():
    """An exception in `__init__` is a failure of the rollout: loading and building succeed."""
    builder = build(Exploding)
    with pytest.raises(ValueError, match="no licence"):
        await make(builder)


async def test_a_message_env_is_adapted():
    """A class that uses chat dicts is played through the adapter."""
    env = await make(build(Chat))
    assert isinstance(env, MessageEnvAdapter)
    assert isinstance(env.env, Chat)


@pytest.mark.parametrize(("found", "args"), [(Builder, {"size": "7"}), (Builder(7), {}), (make_builder, {"size": "7"})])
async def test_a_group_builder_is_one_task(found, args):
    """A builder plays as many episodes as asked for, and gets a name if it has none."""
    builder = build(found, args)
    assert (builder.env, builder.task, builder.episodes) == ("mine:it", "Builder", 2)
    assert (await make(builder)).size == 7


def test_a_builder_that_was_given_is_not_changed():
    """A run uses a copy of the builder."""
    mine = Builder()
    assert build(mine) is not mine
    assert mine.episodes == 1


@pytest.mark.parametrize(("found", "args"), [(ArithmeticTasks, {"difficulty": "2"}), (ArithmeticTasks(2), {})])
def test_tasks_are_taken_as_they_are(found, args):
    """A class of tasks is made with the arguments, and an instance is used as it is."""
    tasks = as_tasks(found, "mine:it", args)
    assert isinstance(tasks, ArithmeticTasks)
    assert tasks.difficulty == 2


async def test_a_function_may_return_a_class():
    """The arguments go to the function; the class is then made without any."""
    assert type(await make(build(make_class, {"size": "2"}))) is Own


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Unfinished, "mine:it lacks step, which every Env must define"),
        (Env, "lacks initial_observation, step"),
        (Tasks, "lacks builder, which every Tasks must define"),
        (MessageEnv, "lacks initial_observation, step, which every MessageEnv"),
        (dict, "got the class dict: let it inherit from Env"),
        (7, "got int"),
        (Own(), "an env plays one rollout only. Name its class"),
        (make_one, "a function whose annotation says that it returns a Own"),
        (make_nothing, "got NoneType"),
        (make_function, "got a function that returns function"),
        (make_later, "got an async function"),
    ],
)
def test_what_is_no_environment_is_refused(found, message):
    """The error says what is accepted and what was given."""
    with pytest.raises(InputError) as caught:
        as_tasks(found, "mine:it", {})
    assert message in str(caught.value)


def test_arguments_are_checked_when_the_env_is_named():
    """A misspelled or invalid argument is refused before anything is played."""
    with pytest.raises(UnknownNameError, match="argument of mine:it 'sise'"):
        as_tasks(Own, "mine:it", {"sise": "1"})
    with pytest.raises(InputError, match="Expected `int` for argument 'size'"):
        as_tasks(Own, "mine:it", {"size": "big"})
    with pytest.raises(InputError, match="which is an object already, got size"):
        as_tasks(Builder(), "mine:it", {"size": "1"})


def test_a_builder_that_fixes_its_episodes_is_refused():
    """A group size that cannot be set is an error, not silently another size."""
    with pytest.raises(InputError, match=r"on which `episodes`.* can be set, got .*neither frozen nor a property"):
        build(Sealed())


async def test_a_factory_that_makes_something_else_is_an_env_error():
    """A factory that returns the wrong type is an error when the episode is made."""

    def liar() -> Own:
        return 7

    builder = build(liar)
    with pytest.raises(EnvError, match="to make an Env or a MessageEnv, got int"):
        await builder.make_episode(0)
