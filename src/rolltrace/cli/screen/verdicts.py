"""What graders recorded about one rollout, in words rather than as JSON."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from rolltrace.cli.screen.number_format import short_number
from rolltrace.query.rubric_grid import rubric_scores
from rolltrace.terminal_text import escape_line
from rolltrace.trace.json_numbers import as_float
from rolltrace.trace.rollout import Rollout

_LONGEST = 200


def rubric_lines(rollout: Rollout) -> list[Text]:
    """A line for each criterion: its score, its weight, and what was looked for."""
    lines = []
    for criterion, cell in rubric_scores(rollout):
        line = Text().append(f"{escape_line(criterion.name)} {short_number(cell.value)}", "bold")
        line.append("" if criterion.weight is None else f" × {short_number(criterion.weight)}")
        lines.append(line.append(f"  {escape_line(criterion.text or '')[:_LONGEST]}", "dim"))
    return lines


def matchups_text(extra: Mapping[str, Any]) -> Text:
    """Whom the rollout met in a tournament, and what came of each meeting; empty where that is not recorded."""
    matchups = extra.get("matchups")
    if not isinstance(matchups, list) or not all(isinstance(one, Mapping) for one in matchups):
        return Text()
    return Text("  ").join(_matchup(one) for one in matchups)


def _matchup(one: Mapping[str, Any]) -> Text:
    index, score = one.get("opponent_index"), as_float(one.get("score"))
    name = f"#{index}" if type(index) is int else escape_line(str(one.get("opponent")))[:_LONGEST]
    text = Text().append(f"{name} ", "dim")
    if score is None:
        return text.append(f"not judged: {escape_line(str(one.get('error')))[:_LONGEST]}", "red")
    text.append(f"{score:+.2f}" if score else "0", "green" if score > 0 else "red" if score < 0 else "")
    return text.append({True: " as first", False: " as second"}.get(one.get("first") is True, ""), "dim")
