"""How people name rollouts."""

import pytest

from rolltrace.errors import InputError, UnknownNameError
from rolltrace.query.address import address, choose, short_addresses
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader


@pytest.fixture
def make_run(tmp_path, make_line):
    """The rollouts of a run that was written with these identities."""

    def make(*identities):
        with create_run(tmp_path / "run") as writer:
            for identity in identities:
                writer.write_rollout(make_line(writer, **identity))
        return list(RunReader(tmp_path / "run").rollouts())

    return make


def test_end_of_an_address_is_enough(make_run):
    """GROUP/INDEX names a rollout where only one matches."""
    rollouts = make_run({"group": "a", "index": 0}, {"group": "a", "index": 1}, {"group": "aa", "index": 1})
    assert choose(rollouts, "a/1", "run") == [rollouts[1]]
    assert choose(rollouts, "train/sums/0/aa/1", "run") == [rollouts[2]]


def test_parts_of_an_id_are_enough(make_run):
    """An id is found by all of it, its beginning or its end."""
    rollouts = make_run({"index": 0}, {"index": 1})
    wanted = rollouts[1]
    assert choose(rollouts, wanted.id, "run") == [wanted]
    assert choose(rollouts, wanted.id[-10:], "run") == [wanted]
    assert choose(rollouts, wanted.id[:-1], "run") == [wanted]


def test_group_names_all_its_members(make_run):
    """An address without an index names the group, in the order of the index."""
    rollouts = make_run({"group": "a", "index": 1}, {"group": "a", "index": 0}, {"group": "b", "index": 0})
    assert [rollout.index for rollout in choose(rollouts, "a", "run")] == [0, 1]


def test_ambiguous_name_says_how_many_match(make_run):
    """A name that several rollouts or groups have is refused with the matches."""
    rollouts = make_run({"iteration": 0}, {"iteration": 1})
    with pytest.raises(InputError, match=r"2 rollouts of run match 'g/0': train/sums/0/g/0"):
        choose(rollouts, "g/0", "run")
    with pytest.raises(InputError, match="2 groups of run match 'g'"):
        choose(rollouts, "g", "run")
    assert choose(rollouts, "1/g/0", "run") == [rollouts[1]]


def test_unknown_name_suggests_the_nearest(make_run):
    """A name that nothing has is answered with the nearest."""
    rollouts = make_run({"group": "apple", "index": 0}, {"group": "pear", "index": 0})
    with pytest.raises(UnknownNameError, match="Did you mean 'apple/0'"):
        choose(rollouts, "aple/0", "run")
    with pytest.raises(UnknownNameError, match="it holds none"):
        choose([], "x", "run")


def test_address_means_the_last_attempt(make_run):
    """Where an episode was played anew, its address names the last attempt; the others have their ids."""
    rollouts = make_run({"attempt": 0}, {"attempt": 1})
    assert choose(rollouts, "g/0", "run") == [rollouts[1]]
    assert choose(rollouts, rollouts[0].id, "run") == [rollouts[0]]


@pytest.mark.parametrize("field", ["split", "env", "iteration", "group", "index"])
def test_short_addresses_name_their_rollouts(make_run, field):
    """Whatever differs in a run, each short address is an end of the address and names one rollout."""
    values = (0, 1) if field in ("iteration", "index") else ("one", "two")
    rollouts = make_run({field: values[0]}, {field: values[1]})
    for rollout in rollouts:
        short = short_addresses(rollouts)[rollout.id]
        assert address(rollout).endswith(short)
        assert choose(rollouts, short, "run") == [rollout]
