"""A histogram in a few lines of text."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rolltrace.cli.screen.number_format import short_number
from rolltrace.query.histogram import Histogram

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_HEIGHT = 5
_WIDEST = 76
"""How many columns a chart takes at most; also where there is no terminal."""
_BAR = 2
_NARROW = 30
"""A terminal with fewer columns has no room for a chart."""


def show_chart(console: Console, chart: Histogram, what: str) -> None:
    """Print the bars and the axis, with what it is of; nothing where there are not two different numbers."""
    width = min(console.width, _WIDEST)
    if len(chart.bins) < 2 or width < _NARROW:
        return
    for line in _lines(chart, what, width):
        line.rstrip()
        console.print(line, soft_wrap=True)


def _lines(chart: Histogram, what: str, width: int) -> Iterator[Text]:
    counts = [one.n for one in chart.bins]
    top = f"{max(counts):,}"
    each = max(1, min(_BAR + 1, (width - len(top) - len(what) - 4) // len(counts)))
    for row in reversed(range(_HEIGHT)):
        is_top = row == _HEIGHT - 1
        axis = Text().append(f"{top if is_top else '':>{len(top)}} {'┤' if is_top else '│'}", "dim")
        yield axis.append("".join(_piece(count, max(counts), row, each) for count in counts), "cyan")
    yield Text(f"{'':{len(top)}} └{'─' * (each * len(counts))}", "dim")
    edges = [chart.bins[0].low, *(one.high for one in chart.bins)]
    yield Text(f"{'':{len(top) + 2}}{_scale(edges, each)}  {what}", "dim")


def _piece(count: int, most: int, row: int, each: int) -> str:
    """What a bar has in a row; the smallest count still shows."""
    eighths = max(1, round(count / most * _HEIGHT * 8)) if count else 0
    sign = _EIGHTHS[min(8, max(0, eighths - 8 * row))]
    return sign * each if each < _BAR + 1 else sign * _BAR + " "


def _scale(edges: Sequence[float], each: int) -> str:
    """The edges that have room, each where it is, the first and the last among them."""
    whole = (len(edges) - 1) * each
    last = short_number(edges[-1])
    line = short_number(edges[0])
    for place, edge in enumerate(edges[1:-1], 1):
        text = short_number(edge)
        start = place * each - cell_len(text) // 2
        if place * 4 % (len(edges) - 1) == 0 and start > len(line) + 1 and start + len(text) < whole - len(last) - 1:
            line = f"{line:{start}}{text}"
    return f"{line:{max(len(line) + 1, whole - len(last))}}{last}"
