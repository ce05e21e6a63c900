"""`rolltrace check`: its output for people and programs, and the exit code."""

import json

import pytest

from rolltrace.check.audit_registry import built_in_audits
from rolltrace.store.create import create_run
from rolltrace.trace.codec import add_checksum

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202eesrever\u202c [bold]markup[/bold]"


def forge(file, **fields):
    """Changes the last line of a file, with a right checksum."""
    lines = file.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[-1])
    del record["crc"]
    lines[-1] = add_checksum(json.dumps(record | fields).encode())
    file.write_bytes(b"".join(lines))


@pytest.fixture
def path(make_run, one_plus_one):
    return make_run(one_plus_one, one_plus_one)


def only_file(path, folder):
    (file,) = (path / folder).iterdir()
    return file


def test_nothing_wrong(rolltrace, path):
    """A sound run is reported as such, with what was checked, and ends with 0."""
    shown = rolltrace("check", path)
    assert shown.exit_code == 0
    assert "2 rollouts and 0 scores of 1 session" in shown.stdout
    assert f"{len(built_in_audits())} audits" in shown.stdout
    assert shown.stdout.rstrip().endswith("✓ nothing wrong")
    assert shown.stderr == ""


def test_audits_without_data_are_listed_once_by_reason(rolltrace, path):
    """Audits whose data was not recorded share one line, which says what is missing."""
    shown = rolltrace("check", path)
    assert shown.stdout.count("no advantages of whole groups are recorded") == 1
    assert "advantage_mismatch, advantage_formula, advantage_sign: no advantages of whole groups" in shown.stdout


def test_a_finding_says_where_to_look(rolltrace, path):
    """An error names its audit, why it matters, and the rollout as `show` takes it; the exit code is 1."""
    forge(only_file(path, "rollouts"), reward=7.0)
    shown = rolltrace("check", path)
    assert shown.exit_code == 1
    assert "✗ reward_total  error  1 finding" in shown.stdout
    assert "reward is 7.0, reward_so_far is 1.0" in shown.stdout
    assert "so the policy is trained on a wrong total." in shown.stdout
    assert "train/sums/0/two/1" in shown.stdout
    assert "1 error" in shown.stdout
    command = shown.stdout.rstrip().splitlines()[-1]
    assert command.startswith("To look at one:")
    identifier = command.split()[-1]
    assert rolltrace("show", path, identifier).exit_code == 0


def test_an_info_does_not_fail(rolltrace, path):
    """An info is shown, and the exit code is 0."""
    (path / "rollouts" / ".left.zst").write_bytes(b"half")
    shown = rolltrace("check", path)
    assert shown.exit_code == 0
    assert "leftovers" in shown.stdout
    assert "✓ nothing wrong, 1 worth knowing" in shown.stdout


def test_more_findings_than_are_shown(rolltrace, path):
    """Further findings are counted, and the output says how to see them."""
    for number in range(5):
        (path / "rollouts" / f"notes{number}.txt").write_text("mine")
    shown = rolltrace("check", path, "--most", 2)
    assert "5 findings" in shown.stdout
    assert "… and 3 more: --most 5 shows all" in shown.stdout
    assert "notes1.txt" in shown.stdout
    assert "notes2.txt" not in shown.stdout
    assert "… and" not in rolltrace("check", path, "--most", 5).stdout


def test_several_runs(rolltrace, path, tmp_path):
    """One bad run among several makes the exit code 1; each has its report."""
    create_run(tmp_path / "bad").close()
    (tmp_path / "bad" / "scores").rmdir()
    shown = rolltrace("check", path, tmp_path / "bad")
    assert shown.exit_code == 1
    assert "✓ nothing wrong" in shown.stdout
    assert "✗ missing_folders" in shown.stdout


def test_json(rolltrace, path):
    """A program gets one object per run, with the findings of every audit."""
    forge(only_file(path, "rollouts"), reward=7.0)
    shown = rolltrace("check", path, path, "--json")
    assert shown.exit_code == 1
    reports = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(reports) == 2
    assert reports[0]["ok"] is False
    assert (reports[0]["rollouts"], reports[0]["scores"]) == (2, 0)
    counts = {result["audit"]: result["count"] for result in reports[0]["results"]}
    assert counts.keys() == {audit.name for audit in built_in_audits()}
    assert counts.pop("reward_total") == 1
    assert counts.pop("inconsistent_rewards", 0) <= 1  # the two rollouts say the same
    assert {name for name, count in counts.items() if count} == set()


def test_audits_can_be_chosen(rolltrace, path):
    """`--only` and `--skip` choose audits; a wrong name is wrong usage."""
    forge(only_file(path, "rollouts"), reward=7.0)
    assert rolltrace("check", path, "--skip", "reward_total").exit_code == 0
    assert rolltrace("check", path, "--only", "damaged").exit_code == 0
    assert rolltrace("check", path, "--only", "reward_total").exit_code == 1
    shown = rolltrace("check", path, "--only", "reward_totl")
    assert shown.exit_code == 2
    assert "Did you mean 'reward_total'?" in shown.stderr


def test_list(rolltrace):
    """`--list` describes each audit, for people and for programs."""
    shown = rolltrace("check", "--list")
    assert shown.exit_code == 0
    for audit in built_in_audits():
        assert audit.name in shown.stdout
        assert audit.why in shown.stdout
    told = [json.loads(line) for line in rolltrace("check", "--list", "--json").stdout.splitlines()]
    assert [one["name"] for one in told] == [audit.name for audit in built_in_audits()]
    assert {one["severity"] for one in told} == {"error", "warning", "info"}


def test_wrong_usage(rolltrace, tmp_path):
    """Without a run, or with a path that is not one, the exit code is 2 with a message."""
    for words in (("check",), ("check", tmp_path), ("check", tmp_path / "nowhere")):
        shown = rolltrace(*words)
        assert shown.exit_code == 2
        assert "Expected" in shown.stderr
        assert shown.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ("--iteration", "9"),
        ("--watch", "--iteration", "0"),
        ("--watch", "--fail-on", "info"),
        ("--watch", "--write-baseline", "known.json"),
    ],
)
def test_options_without_effect_are_refused(rolltrace, path, words):
    """Nothing is found in an iteration that does not exist, and a watch ends with Ctrl-C."""
    shown = rolltrace("check", path, *words)
    assert shown.exit_code == 2
    assert "Expected" in shown.stderr


def test_hostile_text_cannot_steer(rolltrace, path, in_terminal):
    """Hostile names and messages are shown with their control characters escaped."""
    forge(only_file(path, "rollouts"), reward=7.0, group=HOSTILE, id=HOSTILE, session=HOSTILE)
    for shown in (rolltrace("check", path).stdout, in_terminal("check", path, NO_COLOR="1")[1]):
        assert "␛[31mred" in shown
        assert "[bold]markup[/bold]" in shown
        for harmful in ("\x1b[31m", "\x1b]", "\u202e", "\x07"):
            assert harmful not in shown
