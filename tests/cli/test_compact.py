"""`rolltrace compact`."""

import json


def test_compact_says_what_it_did(rolltrace, make_run):
    """Compaction compresses segments, builds tables, says so, and can be repeated."""
    run = make_run(lambda rollout_builder: None, lambda rollout_builder: None)
    shown = rolltrace("compact", run)
    assert shown.exit_code == 0, shown.stderr
    assert "1 segments compressed; tables of 2 rollouts" in shown.stdout
    again = json.loads(rolltrace("compact", run, "--json").stdout)
    assert (again["compressed"], again["rows"]["rollouts"]) == (0, 2)
    assert [place.suffix for place in (run / "rollouts").iterdir()] == [".zst"]
    assert "2" in rolltrace("query", run, "select count(*) from rollouts").stdout


def test_no_run_is_wrong_usage(rolltrace, tmp_path):
    """A path without a run ends with exit code 2."""
    assert rolltrace("compact", tmp_path / "nowhere").exit_code == 2


def test_a_place_that_cannot_be_written_to_is_a_failure(rolltrace, make_run, one_plus_one):
    """A cache that cannot be written ends with exit code 1, since the usage is right."""
    path = make_run(one_plus_one)
    (path / "cache").write_text("in the way")
    shown = rolltrace("compact", path)
    assert shown.exit_code == 1
    assert "cannot" in shown.stderr
