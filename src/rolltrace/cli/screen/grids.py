"""Numbers about members of a group as tables: a rubric, and who was preferred to whom."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.screen.number_format import print_wrapped, short_number
from rolltrace.query.preference_matrix import PreferenceMatrix
from rolltrace.query.rubric_grid import RubricGrid
from rolltrace.terminal_text import escape_line

_CELL = 9
"""How many columns of the terminal a member takes, its gap included."""
_MAX_NAME_CHARS = 28


def show_rubric(console: Console, rubric: RubricGrid, names: Mapping[str, str], *, full: bool) -> None:
    """Print a line for each criterion and a column for each member; what the grader said where all is asked for."""
    print_wrapped(console, Text("rubric", "bold"))
    labels = [_criterion(one.name, one.weight) for one in rubric.criteria]
    cells = [[Text(short_number(cell.value)) for cell in row] for row in rubric.cells]
    _show_grid(console, labels, [names.get(one, "?") for one in rubric.ids], cells)
    if not full:
        return
    for criterion, row in zip(rubric.criteria, rubric.cells, strict=True):
        print_wrapped(console, Text(escape_line(f"{criterion.name}: {criterion.text or ''}"), "bold"), "  ")
        for member, cell in zip(rubric.ids, row, strict=True):
            if cell.words:
                said = Text().append(f"{names.get(member, '?')} ", "cyan").append(escape_line(cell.words))
                print_wrapped(console, said, "    ")


def show_matrix(console: Console, matrix: PreferenceMatrix, names: Mapping[str, str]) -> None:
    """Print who was preferred to whom, and what the grader says of itself."""
    print_wrapped(
        console, Text().append("preferences", "bold").append("  from 1, the row's is far better, to −1", "dim")
    )
    labels = [names.get(one or "", "?") for one in matrix.ids]
    cells = [
        [Text("·", "dim") if row == column else _preference(value) for column, value in enumerate(values)]
        for row, values in enumerate(matrix.cells)
    ]
    _show_grid(console, [Text(f"{label} first", "bold") for label in labels], labels, cells)
    told = "  ".join(f"{escape_line(name)} {short_number(value)}" for name, value in matrix.numbers.items())
    if told:
        print_wrapped(console, Text(told, "dim"), "  ")


def _preference(value: float | None) -> Text:
    if value is None:
        return Text("–", "dim")
    return Text(f"{value:+.2f}" if value else "0", "green" if value > 0 else "red" if value < 0 else "")


def _criterion(name: str, weight: float | None) -> Text:
    shown = escape_line(name)
    shown = f"{shown[:_MAX_NAME_CHARS]}…" if len(shown) > _MAX_NAME_CHARS else shown
    text = Text().append(shown, "bold")
    return text if weight is None else text.append(f" × {short_number(weight)}", "dim")


def _show_grid(
    console: Console, labels: Sequence[Text], columns: Sequence[str], cells: Sequence[Sequence[Text]]
) -> None:
    """Print a table, in pieces where it is wider than the terminal."""
    room = console.width - max(label.cell_len for label in labels) - 4
    each = max(1, room // _CELL)
    for start in range(0, len(columns), each):
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("", no_wrap=True)
        for column in columns[start : start + each]:
            table.add_column(Text(column), justify="right", no_wrap=True)
        for label, row in zip(labels, cells, strict=True):
            table.add_row(Text("  ").append_text(label), *row[start : start + each])
        console.print(table)
