"""Creating and joining runs."""

import json
import math
import os
import threading
from pathlib import Path

import pytest

import rolltrace
from rolltrace.errors import InputError, RunExistsError, RunNotFoundError, StorageError
from rolltrace.store.create import create_run, unused_run_path
from rolltrace.store.reader import RunReader


def test_run_file_says_what_the_run_is(tmp_path):
    """`run.json` holds version, id, time, config, package version and code revision."""
    with create_run(tmp_path / "run", {"lr": 0.1}) as writer:
        described = json.loads((tmp_path / "run/run.json").read_text())
    assert described["v"] == 2
    assert described["id"] == writer.run
    assert described["config"] == {"lr": 0.1}
    assert described["package_version"] == rolltrace.__version__
    assert {"created_at", "code_revision"} <= described.keys()


def test_damaged_run_file_is_refused(tmp_path):
    """A `run.json` whose bytes are not those that were written is refused, and the error says what to do."""
    create_run(tmp_path / "run", {"lr": 0.1}).close()
    file = tmp_path / "run/run.json"
    file.write_bytes(file.read_bytes().replace(b"0.1", b"0.2"))
    with pytest.raises(RunNotFoundError, match=r"valid run\.json: Expected checksum .* Restore it"):
        RunReader(tmp_path / "run")


def test_config_survives_whatever_is_in_it(tmp_path):
    """Config values that JSON lacks are read back, and values that cannot be kept become placeholders."""
    create_run(tmp_path / "run", {"nan": math.nan, "path": Path("x"), "object": object()}).close()
    config = RunReader(tmp_path / "run").info.config
    assert math.isnan(config["nan"])
    assert config["path"] == "x"
    assert "$unrepresentable" in config["object"]


def test_existing_run_is_refused_and_untouched(tmp_path):
    """An existing run is never overwritten."""
    create_run(tmp_path / "run").close()
    before = (tmp_path / "run/run.json").read_bytes()
    with pytest.raises(RunExistsError, match="never overwritten"):
        create_run(tmp_path / "run")
    assert (tmp_path / "run/run.json").read_bytes() == before


def test_one_of_many_creators_wins(tmp_path):
    """Of processes that create the same run at once, one succeeds and the others get an error."""
    outcomes = []
    start = threading.Barrier(8)

    def create():
        start.wait()
        try:
            outcomes.append(create_run(tmp_path / "run").run)
        except RunExistsError:
            outcomes.append(None)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = [outcome for outcome in outcomes if outcome is not None]
    assert RunReader(tmp_path / "run").info.id == winner


def test_directory_with_other_files_is_refused(tmp_path):
    """A directory with other files, or a file, is refused."""
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="other files"):
        create_run(tmp_path)
    with pytest.raises(InputError, match="the file"):
        create_run(tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_empty_directory_is_taken(tmp_path):
    """An empty directory can become a run."""
    create_run(tmp_path).close()
    assert RunReader(tmp_path).info is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_place_is_named(tmp_path):
    """The error names a place that cannot be written to, with the reason."""
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied"):
        create_run(tmp_path / "run")


def test_place_below_a_file_is_wrong_input(tmp_path):
    """The error names a place that cannot exist, with the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Not a directory"):
        create_run(tmp_path / "file/run")


def test_join_is_a_new_session_of_the_same_run(tmp_path, make_line):
    """A joined run has the same id and config, and a session and files of its own."""
    with create_run(tmp_path / "run", {"a": 1}) as first:
        make_line(first).record()
    with create_run(tmp_path / "run", {"a": 2}, join=True) as second:
        make_line(second).record()
    assert second.run == first.run
    assert second.session != first.session
    reader = RunReader(tmp_path / "run")
    assert [rollout.session for rollout in reader.rollouts()] == [first.session, second.session]
    assert reader.info.config == {"a": 1}
    assert len(list((tmp_path / "run/rollouts").iterdir())) == 2


def test_join_of_a_missing_run_is_refused(tmp_path):
    """Joining does not create a run, so that a misspelled path is noticed."""
    with pytest.raises(RunNotFoundError, match="Expected a run at"):
        create_run(tmp_path / "run", join=True)


def test_run_is_made_without_git(tmp_path, monkeypatch):
    """Without git or a repository, the revision is null and nothing fails."""
    monkeypatch.setenv("PATH", "")
    create_run(tmp_path / "run").close()
    assert RunReader(tmp_path / "run").info.code_revision is None


def test_fresh_path_names_nothing_that_exists(tmp_path):
    """A fresh path is the name, or the name with a number, and never leaves the folder."""
    assert unused_run_path(tmp_path, "demo") == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    assert unused_run_path(tmp_path, "demo") == tmp_path / "demo-2"
    assert unused_run_path(tmp_path, "../my.pkg:Env").parent == tmp_path


def test_session_records_which_sessions_it_continues(tmp_path):
    """Every ledger line of a session names the sessions that it continues; a new run has none."""
    with create_run(tmp_path / "run") as first:
        first.flush()
    with create_run(tmp_path / "run", join=True, continues=[first.session]) as second:
        second.flush()
    with create_run(tmp_path / "run", join=True) as third:
        pass
    stated = {session: ledger.continues for session, ledger in RunReader(tmp_path / "run").ledgers().items()}
    assert stated == {first.session: (), second.session: (first.session,), third.session: None}
    lines = (tmp_path / "run/ledger" / f"{second.session}.jsonl").read_text().splitlines()
    assert [json.loads(line)["continues"] for line in lines] == [[first.session]] * len(lines)


@pytest.mark.parametrize("continues", ["", [""], [7], 7])
def test_sessions_to_continue_are_ids(tmp_path, continues):
    """A value that is not a session id is refused, and no session is begun."""
    create_run(tmp_path / "run").close()
    with pytest.raises(InputError, match="Expected the ids of sessions in continues="):
        create_run(tmp_path / "run", join=True, continues=continues)


def test_new_run_has_nothing_to_continue(tmp_path):
    """`continues` is accepted when a run is joined, not when it is created."""
    with pytest.raises(InputError, match="join=True"):
        create_run(tmp_path / "run", continues=["01970000000000000000000000000002"])
    assert not (tmp_path / "run").exists()
