"""Naming rollouts, in runs of any size."""

import pytest

from answers import write
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.query.rollout_lookup import find_rollouts
from rolltrace.store.create import create_run


@pytest.fixture
def find(path, opened):
    """Writes a run of these identities; then finds ids by name."""

    def make(*identities):
        with create_run(path) as writer:
            ids = [write(writer, **identity) for identity in identities]
        run = opened(path)
        return ids, lambda name, **limit: [head.id for head in find_rollouts(run, name, **limit)]

    return make


def test_end_of_an_address_is_enough(find):
    """GROUP/INDEX names a rollout if only one matches."""
    ids, found = find({"group": "a", "index": 0}, {"group": "a", "index": 1}, {"group": "aa", "index": 1})
    assert found("a/1") == [ids[1]]
    assert found("0/aa/1") == [ids[2]]
    assert found("train/sums/0/aa/1") == [ids[2]]


def test_parts_of_an_id_are_enough(find):
    """An id is found by all of it, its beginning or its end; parts of fewer than four characters are ignored."""
    ids, found = find({"index": 0}, {"index": 1})
    assert found(ids[1]) == found(ids[1][-10:]) == found(ids[1][:-1]) == [ids[1]]
    with pytest.raises(UnknownNameError):
        found(ids[1][-3:])


def test_group_names_all_its_members(find):
    """An address without an index names the group, in the order of the index."""
    ids, found = find({"group": "a", "index": 1}, {"group": "a", "index": 0}, {"group": "b", "index": 0})
    assert found("a") == found("0/a") == [ids[1], ids[0]]
    assert found("a", limit=1) == [ids[1]]


def test_a_number_alone_is_a_group(find):
    """An index needs its group, so that a number alone names a group."""
    ids, found = find(*({"group": group, "index": index} for group in ("0", "1") for index in range(3)))
    assert found("1") == ids[3:]
    assert found("1/2") == [ids[5]]


def test_ambiguous_prefixes_are_refused(find):
    """A prefix of several ids is refused with their number."""
    ids, found = find({"group": "a", "index": 0}, {"group": "a", "index": 1})
    start = ids[0][:4]
    assert ids[1].startswith(start)
    with pytest.raises(InputError, match=f"2 rollouts of .* match '{start}'"):
        found(start)


def test_a_group_that_is_called_like_ids_begin(path, opened):
    """The name of a group is found, although many ids begin with it."""
    with create_run(path) as writer:
        start = write(writer, group="other")[:4]
        inside = write(writer, group=start)
        write(writer, group="other", index=1)
    assert [head.id for head in find_rollouts(opened(path), start)] == [inside]


def test_ambiguous_name_says_how_many_match(find):
    """A name that matches several rollouts or groups is refused with the first matches and their number."""
    ids, found = find(*({"group": "g", "index": 0, "iteration": iteration} for iteration in range(7)))
    with pytest.raises(InputError, match=r"7 rollouts of .* match 'g/0': train/sums/0/g/0 \(.*\), …\. Give more"):
        found("g/0")
    with pytest.raises(InputError, match=r"7 groups of .* match 'g': train/sums/0/g, .*4/g, …\."):
        found("g")
    assert found("1/g/0") == [ids[1]]


def test_unknown_name_suggests_the_nearest(find, tmp_path, opened):
    """An unknown name is refused with the nearest one and the number of rollouts."""
    _, found = find({"group": "apple", "index": 0}, {"group": "pear", "index": 0})
    with pytest.raises(UnknownNameError, match=r"among the 2 rollouts .* Did you mean 'apple/0'"):
        found("aple/0")
    create_run(tmp_path / "empty").close()
    with pytest.raises(UnknownNameError, match="the run has no rollouts"):
        find_rollouts(opened(tmp_path / "empty"), "x")


def test_address_means_the_last_attempt_of_the_latest_session(path, opened):
    """If an episode was repeated, its address names the last play; the others have their ids."""
    with create_run(path) as writer:
        superseded = write(writer, group="g", index=0)
    with create_run(path, join=True) as writer:
        retried, last = (write(writer, group="g", index=0, attempt=attempt) for attempt in range(2))
    run = opened(path)
    for name, wanted in (("g/0", last), ("g", last), (retried, retried), (superseded, superseded)):
        assert [head.id for head in find_rollouts(run, name)] == [wanted]


def test_a_line_that_is_there_twice_is_one_rollout(path, opened):
    """A file that was copied into the run does not make its rollouts ambiguous."""
    with create_run(path) as writer:
        rollout = write(writer, group="g", index=0)
    (file,) = (path / "rollouts").iterdir()
    file.with_name(f"copy-{file.name}").write_bytes(file.read_bytes())
    assert [head.id for head in find_rollouts(opened(path), "g/0")] == [rollout]


def test_few_are_found_among_many(path, opened):
    """However many ids and addresses contain a name, the group of that name is found."""
    with create_run(path) as writer:
        for number in range(10_500):
            write(writer, group=f"x01x{number}", index=1, iteration=1)
        members = [write(writer, group="01", index=index) for index in range(3)]
    run = opened(path)
    assert [head.id for head in find_rollouts(run, "01")] == members
    assert [head.id for head in find_rollouts(run, "01/2")] == [members[2]]
    with pytest.raises(UnknownNameError, match="among the 10503 rollouts"):
        find_rollouts(run, "02/1")


@pytest.mark.parametrize("name", ["", "/", "'", "g/", "/0", "g/-1", "g/00", f"g/{10**30}", "%", "a\x00b", '"; drop'])
def test_strange_names_are_unknown(find, name):
    """Any text is treated as a name, and as nothing else."""
    _, found = find({"group": "g", "index": 0})
    with pytest.raises(UnknownNameError):
        found(name)
