"""Listings and neighbours of a growing run are consistent snapshots, whatever other requests run meanwhile."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from rolltrace.store.create import create_run
from rolltrace.viewer import rollout_table
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.open_runs import OpenRuns

ROLLOUTS = 1_500


def name(number):
    """The id of a rollout; ids sort by their numbers."""
    return f"{number:08d}"


@pytest.fixture
def folder(tmp_path):
    """The viewer's folder, with a run that has no rollouts yet."""
    create_run(tmp_path / "run").close()
    return tmp_path


@pytest.fixture
def ask(folder, monkeypatch):
    """Makes an API request about the run; its listings have many windows."""
    monkeypatch.setattr(rollout_table, "WINDOW", 100)
    runs = OpenRuns(folder)
    api = Api(runs)

    def ask(question, **parameters):
        pairs = [("run", "run"), *((key, str(value)) for key, value in parameters.items())]
        return json.loads(api.handlers[question](RequestParameters(pairs)))

    yield ask
    runs.close()


def grow(folder, most=ROLLOUTS):
    """Writes the rollouts in the order of their ids."""
    with create_run(folder / "run", join=True) as run:
        for number in range(most):
            with run.rollout(env="e", task="t", group="g", index=number, id=name(number)) as r:
                r.step("?", "!", float(number))
            if number % 50 == 0:
                run.flush()


def check_page(ask, rng):
    """Asserts that a page in either direction has the rows that belong to its total."""
    descending, offset = rng.random() < 0.5, rng.randrange(ROLLOUTS)
    page = ask("rollouts", sort="-id" if descending else "id", offset=offset, limit=150)
    numbers = range(page["total"])[::-1] if descending else range(page["total"])
    assert [row["id"] for row in page["rows"]] == [name(number) for number in numbers[offset : offset + 150]]


def check_neighbours(ask, rng):
    """Asserts that the rollouts before and after one are next to it, and that its position belongs to the total."""
    number = rng.randrange(ROLLOUTS)
    found = ask("neighbours", sort="-id", id=name(number))
    if found["position"] is not None:
        last = found["total"] - 1
        assert found["position"] == last - number
        assert found["previous"] == (name(number + 1) if number < last else None)
        assert found["next"] == (name(number - 1) if number else None)


def test_while_it_grows_every_answer_is_consistent(folder, ask):
    """Three threads request pages and neighbours while the run is written, and after."""

    def watch(seed):
        rng = random.Random(seed)
        while not writing.done():
            rng.choice((check_page, check_neighbours))(ask, rng)
        for _ in range(10):
            rng.choice((check_page, check_neighbours))(ask, rng)

    with ThreadPoolExecutor(4) as pool:
        writing = pool.submit(grow, folder)
        for watching in [pool.submit(watch, seed) for seed in range(3)]:
            watching.result()
        writing.result()


def test_a_page_beyond_the_end(folder, ask):
    """A page beyond the end is empty, and later requests are answered."""
    grow(folder, most=150)
    assert ask("rollouts", sort="id", offset=10**6)["rows"] == []
    found = ask("neighbours", sort="id", id=name(120))
    assert (found["position"], found["previous"], found["next"]) == (120, name(119), name(121))
    assert ask("neighbours", sort="id", id="unknown")["position"] is None
