"""Values that equal others of another type, or that text cannot hold, are recorded so that readers can read them."""

import pytest

from rolltrace.errors import InputError
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.store.recording import Recording
from rolltrace.trace.codec import encode_rollout
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.pattern_redaction import redact_pattern
from rolltrace.trace.score import GroupKey
from rolltrace.trace.text_transform import hash_text

PAIR = "\ud83d\ude00"
"""A smiley, as two surrogates: text that UTF-8 cannot hold before they are joined."""
LEVELS = {"full": "full", "numbers": "numbers", "redact": Recording(redact=redact_pattern("\N{GRINNING FACE}"))}


def record(path, level, *steps, header=None, end=None):
    """Records a rollout for each step; asserts that what is read back encodes to the same bytes."""
    with create_run(path, trace=LEVELS[level]) as run:
        for index, step in enumerate(steps):
            r = run.rollout(env="e", task="t", group="g", index=index, **(header or {}))
            r.step("x", step.pop("response", "y"), 1.0, **step)
            r.end(**(end or {}))
    with open_run(path) as opened:
        rollouts = list(opened.rollouts(order_by='"index"'))
        assert opened.problems == ()
        assert opened.sql("select count(*) from steps").fetchall() == [(len(steps),)]
    [segment] = (path / "rollouts").iterdir()
    assert b"".join(map(encode_rollout, rollouts)) == segment.read_bytes()
    return rollouts


@pytest.mark.parametrize("level", LEVELS)
def test_a_stop_reason_that_utf_8_cannot_hold(tmp_path, level):
    """Surrogates in a stop reason are joined, and the line can be read."""
    [rollout] = record(tmp_path / "run", level, {}, end={"stop_reason": f"won {PAIR}"})
    assert (rollout.stop_reason, rollout.line_reward) == ("won \N{GRINNING FACE}", 1.0)


@pytest.mark.parametrize("level", LEVELS)
def test_settings_that_are_equal_but_of_other_types(tmp_path, level):
    """1, 1.0 and True are equal in Python; each setting has the type of its field."""
    given = [{"top_k": top_k, "temperature": top_k} for top_k in (1, 1.0, True)]
    rollouts = record(tmp_path / "run", level, *({"sampling": settings} for settings in given))
    assert [repr(rollout.sampling) for rollout in rollouts] == [repr((Sampling(temperature=1.0, top_k=1),))] * 3


@pytest.mark.parametrize("level", LEVELS)
def test_settings_with_values_of_other_types_inside(tmp_path, level):
    """A stop sequence that is not text, and other settings in a dict, are converted."""
    steps = ({"sampling": {"stop": [None]}}, {"sampling": Sampling(other={"a": [1]})})
    first, second = record(tmp_path / "run", level, *steps)
    assert first.sampling[0].stop == ("",)
    assert second.sampling[0].other == FrozenMap.of({"a": [1]})


def test_surrogate_pairs_are_redacted(tmp_path):
    """The redact function gets the characters that will be recorded."""
    step = {
        "response": Message("assistant", PAIR, reasoning=PAIR), "raw": PAIR, "parse_error": PAIR,
        "tools": [ToolSpec("n", PAIR, FrozenMap.of({}))], "sampling": Sampling(stop=(PAIR,)),
    }  # fmt: skip
    record(tmp_path / "run", "redact", step)
    [segment] = (tmp_path / "run" / "rollouts").iterdir()
    assert "\N{GRINNING FACE}" not in segment.read_text()
    assert segment.read_text().count("[redacted]") == 6


def test_surrogate_pairs_are_hashed_as_their_character():
    """Length and hash are those of the text in UTF-8."""
    assert hash_text(PAIR) == hash_text("\N{GRINNING FACE}")
    assert hash_text("\ud800") == hash_text("\N{REPLACEMENT CHARACTER}") != hash_text("?")


class Empty(dict):
    """A map that claims to be empty."""

    def __bool__(self):
        return False

    def __len__(self):
        return 0


class Raising(dict):
    """A map that cannot be counted."""

    def __len__(self):
        raise ValueError


@pytest.mark.parametrize("kind", [Empty, Raising])
@pytest.mark.parametrize("level", ["numbers", "redact"])
def test_maps_with_a_wrong_length_are_hidden(tmp_path, level, kind):
    """The text of a map with a wrong or failing length is hashed or redacted like any other."""
    secret = "SECRET" if level == "numbers" else "\N{GRINNING FACE}"
    header = {"task_data": kind(a=secret), "env_args": kind(b=secret)}
    record(tmp_path / "run", level, {}, header=header)
    [segment] = (tmp_path / "run" / "rollouts").iterdir()
    assert secret not in segment.read_text()


def test_each_value_has_one_note(tmp_path):
    """Values that are moved to another map get one note each."""
    step = {"reward_data": {"a": "x"}, "extra": {"o": object()}}
    [rollout] = record(tmp_path / "run", "full", step)
    assert [note.path for note in rollout.notes] == ["steps[0].reward_data.a", "steps[0].extra.o"]


def test_paths_of_notes_are_redacted(tmp_path):
    """A note has the path of a value that could not be recorded, and keys in the path may be secret."""
    [rollout] = record(tmp_path / "run", "redact", {"env_state": {"\N{GRINNING FACE}": object()}})
    assert [note.path for note in rollout.notes] == ["steps[0].env_state.[redacted]"]


class Scalar:
    """A number of another library, which can change."""

    value = 1.5

    def item(self):
        return self.value


def test_a_metric_is_a_snapshot(tmp_path):
    """A number that changes after the call does not change the record."""
    with create_run(tmp_path / "run") as run:
        r = run.rollout(env="e", task="t", group="g", index=0)
        scalar = Scalar()
        r.metric("m", scalar)
        scalar.value = 9.0
        r.end()
    with open_run(tmp_path / "run") as opened:
        assert opened.get(r.id).metrics == {"m": 1.5}


def test_fields_that_the_recorder_sets_are_refused(tmp_path):
    """Version, run and session of a rollout are set by the writer; the parts of a group's key have the right types."""
    with create_run(tmp_path / "run") as run:
        for name in ("v", "run", "session", "colour"):
            with pytest.raises(InputError, match=f"Expected fields of a rollout, got {name}="):
                run.rollout(env="e", task="t", group="g", index=0, **{name: 7})
        with pytest.raises(InputError, match="Expected group= of a score to be a GroupKey"):
            run.score(None, "n", 1.0, group=GroupKey("s", "a", "e", "g"))
