"""Whatever happens to the bytes of a run, a check sees it and survives it."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from rolltrace.check.check_run import check_run


@settings(max_examples=examples(60))
@given(data=st.data())
def test_any_changed_byte_is_noticed(sound_run, data):
    """No byte of a record, a ledger or a blob can be changed or added, and none of a record lost, unnoticed."""
    file = data.draw(st.sampled_from(sorted(path for path in sound_run.glob("*/*") if path.is_file())))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    # Only the last line of a ledger counts, so one that is gone whole is missed by nobody.
    changes = ["flip", "insert"] if file.parent.name == "ledger" else ["flip", "insert", "cut"]
    change = data.draw(st.sampled_from(changes))
    if change == "flip":
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    elif change == "cut":
        del content[place : place + data.draw(st.integers(1, len(content)))]
    else:
        content[place:place] = data.draw(st.binary(min_size=1, max_size=40))
    with TemporaryDirectory() as folder:
        path = shutil.copytree(sound_run, Path(folder) / "run")
        (path / file.relative_to(sound_run)).write_bytes(content)
        report = check_run(path, only=("integrity", "reward"))
    assert all(result.error is None for result in report.results)
    assert not report.ok, "nothing was noticed"
