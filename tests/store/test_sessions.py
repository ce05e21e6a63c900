"""Which session supersedes which."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.store.ledger import Ledger
from rolltrace.store.sessions import Sessions

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def name_at(start, number=0):
    """The id of a session that begins this many seconds after the epoch of these tests."""
    moment = int((EPOCH + timedelta(seconds=start)).timestamp() * 1000)
    return f"{moment:012x}{number:020x}"


def session(start, end, continues=None, number=0, job=""):
    """The last ledger of a session that ran between these seconds."""
    return Ledger(
        run="r", session=name_at(start, number), written_at=EPOCH + timedelta(seconds=end), continues=continues, job=job
    )


def superseded(*ledgers):
    """Which of these sessions are superseded if all of them recorded the same rollout."""
    sessions = Sessions(ledgers)
    found = sessions.superseded([ledger.session for ledger in ledgers])
    return [ledger.session in found for ledger in ledgers]


def test_later_session_is_a_restart():
    """A session without `continues` supersedes those that ended before it began."""
    assert superseded(session(0, 10), session(10, 20), session(21, 30)) == [True, True, False]


def test_sessions_that_overlap_all_count():
    """Sessions without `continues` that overlap in time do not supersede each other, however many there are."""
    assert superseded(*(session(rank, 10 + rank, number=rank) for rank in range(4))) == [False] * 4


def test_session_supersedes_what_it_continues_and_no_other():
    """`continues` decides, whatever the times: of two earlier sessions only the named one is superseded."""
    first, second = session(0, 10), session(1, 10)
    assert superseded(first, second, session(20, 30, (first.session,))) == [True, False, False]
    assert superseded(first, session(20, 30, ())) == [False, False]


def test_continues_holds_if_clocks_are_wrong():
    """A session supersedes the one it continues, even if that one's clock is ahead."""
    ahead = session(1_000, 1_010)
    resumed = session(500, 510, (ahead.session,))
    assert superseded(ahead, resumed) == [True, False]


def test_superseding_is_transitive():
    """Superseding is transitive, by `continues` and by times."""
    first = session(1_000, 1_010)
    second = session(500, 510, (first.session,))
    third = session(505, 520, (second.session,))
    assert superseded(first, second, third) == [True, True, False]
    ahead = session(505, 610)
    resumed = session(500, 510, (ahead.session,))
    assert superseded(ahead, resumed, session(600, 700)) == [True, True, False]


def test_sessions_of_one_job_do_not_supersede_each_other():
    """Workers that were forked one after the other belong to one job: none of them restarts another."""
    parent = session(0, 100)
    workers = [session(start, start + 5, job=parent.session) for start in (10, 20, 30)]
    assert superseded(parent, *workers) == [False] * 4


def test_job_lasts_as_long_as_its_sessions():
    """A session that begins while a job runs collides with it, also with its workers that have ended."""
    parent = session(0, 100)
    worker = session(10, 20, job=parent.session)
    assert superseded(parent, worker, session(50, 60)) == [False, False, False]
    assert superseded(parent, worker, session(101, 160)) == [True, True, False]


def test_continuing_a_session_continues_its_workers():
    """A session that continues another supersedes that one's workers; a single worker can be named, too."""
    parent = session(0, 100)
    worker, other = session(10, 20, job=parent.session), session(11, 20, job=parent.session)
    assert superseded(parent, worker, other, session(50, 60, (parent.session,))) == [True, True, True, False]
    again = session(50, 60, (worker.session,), job=parent.session)
    assert superseded(parent, worker, other, again) == [False, True, False, False]


def test_circle_supersedes_nothing():
    """Sessions that continue each other, or themselves, supersede nothing."""
    first, second = session(0, 10, (name_at(20),)), session(20, 30, (name_at(0),))
    assert superseded(first, second) == [False, False]
    alone = session(0, 10, (name_at(0),))
    assert superseded(alone) == [False]


def test_continued_sessions():
    """`continued` follows `continues` transitively, never times, and excludes sessions that continue each other."""
    first, second = session(0, 10), session(11, 20, (name_at(0),))
    assert Sessions([first, second, session(30, 40, (name_at(11),))]).continued == {name_at(0), name_at(11)}
    assert Sessions([first, session(30, 40)]).continued == frozenset()
    assert Sessions([session(0, 10, (name_at(20),)), session(20, 30, (name_at(0),))]).continued == frozenset()
    assert Sessions([session(0, 10, (name_at(0),))]).continued == frozenset()


def test_clock_that_was_set_back():
    """A session whose last ledger is older than its beginning spans the time between the two."""
    assert superseded(session(100, 50), session(80, 120)) == [False, False]


def test_session_without_a_ledger_lasts_as_its_rollouts():
    """Without a ledger, a session spans the times of its rollouts."""
    with_ledger = session(50, 60)
    for span, expected in [((0, 10), {"lost"}), ((0, 55), set()), ((70, 80), {with_ledger.session})]:
        first, last = (EPOCH + timedelta(seconds=second) for second in span)
        middle = first + (last - first) / 2
        sessions = Sessions([with_ledger], [("lost", middle, last), ("lost", first, middle)])
        assert sessions.superseded(["lost", with_ledger.session]) == expected


@pytest.mark.parametrize("unknown", ["nothing", ""])
def test_unknown_session_collides(unknown):
    """A session that is only a name neither supersedes nor is superseded."""
    ledger = session(0, 10)
    assert Sessions([ledger]).superseded([unknown, ledger.session]) == set()


NUMBERS = st.integers(0, 6)
LEDGERS = st.lists(
    st.tuples(NUMBERS, NUMBERS, st.one_of(st.none(), st.lists(NUMBERS, max_size=2))), min_size=1, max_size=7
)


@given(LEDGERS)
def test_something_always_counts(drawn):
    """Of sessions that recorded the same rollout at least one counts, and none supersedes itself."""
    names = [name_at(start, number) for number, (start, _, _) in enumerate(drawn)]
    ledgers = [
        session(start, start + length, continues and tuple(names[one % len(names)] for one in continues), number)
        for number, (start, length, continues) in enumerate(drawn)
    ]
    sessions = Sessions(ledgers)
    assert sessions.superseded(names) < set(names)
    assert not any(sessions.supersedes(name, name) for name in names)


@given(LEDGERS, st.data())
def test_equal_fingerprints_mean_equal_order(drawn, data):
    """While sessions grow and the fingerprint stays the same, so does the order of superseding."""
    names = [name_at(start, number) for number, (start, _, _) in enumerate(drawn)]
    longer = data.draw(st.lists(NUMBERS, min_size=len(drawn), max_size=len(drawn)))
    states = []
    for more in ([0] * len(drawn), longer):
        sessions = Sessions(
            session(start, start + length + extra, None, number)
            for number, ((start, length, _), extra) in enumerate(zip(drawn, more, strict=True))
        )
        order = {(one, other) for one in names for other in names if sessions.supersedes(one, other)}
        states.append((sessions.fingerprint, order))
    if states[0][0] == states[1][0]:
        assert states[0][1] == states[1][1]
    if states[0][1] != states[1][1]:
        assert states[0][0] != states[1][0]


@given(LEDGERS)
def test_superseded_and_continued_sessions_are_those_of_the_rule(drawn):
    """The fast computation of superseded and continued sessions agrees with the pairwise rule."""
    names = [name_at(start, number) for number, (start, _, _) in enumerate(drawn)]
    sessions = Sessions(
        session(
            start, start + length, continues and tuple(names[one % len(names)] for one in continues), number,
            job=names[start % len(names)] if length == 6 else "",
        )
        for number, (start, length, continues) in enumerate(drawn)
    )  # fmt: skip
    assert sessions.superseded_by_any == {
        one for one in names if any(sessions.supersedes(other, one) for other in names)
    }
    stated = [(one, earlier) for one in names for earlier in sessions._stated_by(one)]
    assert sessions.continued == {earlier for one, earlier in stated if one not in sessions._stated_by(earlier)}


@pytest.mark.parametrize("states", [True, False])
def test_many_sessions_take_linear_time(states):
    """A run of thousands of ledgers is ordered in linear time, with and without `continues`."""
    ledgers = [
        session(2 * start, 2 * start + 1, ((name_at(2 * start - 2),) if start else ()) if states else None)
        for start in range(20_000)
    ]
    sessions = Sessions(ledgers)
    assert len(sessions.superseded_by_any) == 19_999
    assert len(sessions.continued) == (19_999 if states else 0)
