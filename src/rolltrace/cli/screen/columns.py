"""Blocks of lines side by side, as many as the width allows."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

_GAP = " │ "
_NARROWEST = 34
"""A column with fewer letters is no pleasure to read."""

Block = Callable[[int], list[Text]]
"""Makes its lines for a width."""


def show_columns(console: Console, blocks: Sequence[Block]) -> None:
    """Print the blocks beside each other in rows, or below each other where that is all there is room for."""
    count = column_count(console, len(blocks))
    width = console.width if count == 1 else (console.width - len(_GAP) * (count - 1)) // count
    for start in range(0, len(blocks), count):
        console.print()
        columns = [block(width) for block in blocks[start : start + count]]
        for row in range(max(map(len, columns))):
            line = _row(columns, row, width)
            line.rstrip()
            console.print(line, soft_wrap=True)


def column_count(console: Console, blocks: int) -> int:
    """How many columns there are, with rows as equal as can be; what is no terminal has one."""
    if not console.is_terminal or blocks == 0:
        return 1
    most = max(1, (console.width + len(_GAP)) // (_NARROWEST + len(_GAP)))
    rows = -(-blocks // most)
    return -(-blocks // rows)


def _row(columns: Sequence[Sequence[Text]], row: int, width: int) -> Text:
    line = Text()
    for place, column in enumerate(columns):
        if place:
            line.append(_GAP, "dim")
        cell = column[row].copy() if row < len(column) else Text()
        if place < len(columns) - 1:
            cell.pad_right(max(0, width - cell.cell_len))
        line.append_text(cell)
    return line
