"""`rolltrace summary`: one run's numbers, for people and programs."""

import json

from rolltrace.cli.screen.run_summary import sparkline
from rolltrace.trace.failure import Failure
from rolltrace.trace.stop_reasons import Layer, Status

HOSTILE = "\x1b[31mred\u202e [bold]markup[/bold]"


def test_numbers(rolltrace, make_run, one_plus_one):
    """Counts, fractions of all rollouts, rewards and ledger are shown in words."""
    path = make_run(one_plus_one, one_plus_one, one_plus_one)
    shown = rolltrace("summary", path)
    assert shown.exit_code == 0
    for told in (
        "3 in 1 iteration, 3 steps", "sums 3 (100 %)", "tester 3 (100 %)", "1 ± 0 from 1 to 1 (n = 3)",
        "completed 3 (100 %)", "ok 3 (100 %)", "1 (100 %) without: all members have the same reward",
        "1 session: 3 dispatched, 3 recorded",
    ):  # fmt: skip
        assert told in shown.stdout


def test_failures(rolltrace, make_run, one_plus_one):
    """Failures are shown with layer, type and fraction."""
    failure = Failure(Layer.ENV, "OSError", f"gone {HOSTILE}")
    failed = {"status": Status.ERROR, "stop_reason": HOSTILE, "error": failure, "reward": None}
    shown = rolltrace("summary", make_run(one_plus_one, one_plus_one, outcome=failed, env=HOSTILE)).stdout
    assert "2 (100 %) env · OSError: gone" in shown
    assert "none · 2 without" in shown
    assert "[bold]markup[/bold]" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_damage_points_to_check(rolltrace, make_run, one_plus_one):
    """Unreadable places are counted, with the `check` command for details."""
    path = make_run(one_plus_one)
    (file,) = (path / "rollouts").iterdir()
    file.write_bytes(file.read_bytes() + b"garbage\n")
    shown = rolltrace("summary", path)
    assert shown.exit_code == 0
    assert "1 place could not be read" in shown.stdout
    assert f"check {path}" in shown.stdout


def test_json(rolltrace, make_run, one_plus_one):
    """A program gets one object."""
    told = json.loads(rolltrace("summary", make_run(one_plus_one), "--json").stdout)
    assert (told["rollouts"], told["rewards"]["mean"], told["stop_reasons"]) == (1, 1.0, {"completed": 1})
    assert told["iterations"][0]["rewards"]["n"] == 1


def test_no_run(rolltrace, tmp_path):
    """A path without a run is wrong usage."""
    shown = rolltrace("summary", tmp_path)
    assert shown.exit_code == 2
    assert "Expected a run" in shown.stderr


def test_bars_rise_with_the_values():
    """The lowest value is the lowest bar; None and NaN are gaps; many values share a bar."""
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([1.0, None, 0.0, float("nan")]) == "█ ▁ "
    assert sparkline([2.0, 2.0]) == "▅▅"
    assert sparkline([None]) == sparkline([]) == ""
    assert sparkline([-1.7e308, 1.7e308]) == "▁█"
    many = sparkline([float(number) for number in range(1000)])
    assert len(many) == 60
    assert many == "".join(sorted(many))
