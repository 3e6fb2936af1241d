"""A table written row by row, without holding more than the first rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from distlock.commands.text import cut, width

#: The first rows decide how wide the columns are; later ones that do not fit push their line out.
SAMPLE = 500
#: A longer value is cut, except in the last column, where it pushes nothing out of line.
WIDEST = 48
GAP = "  "

Row = Sequence[str]


def lines(heading: Row, rows: Iterable[Row]) -> Iterator[str]:
    """Yield the heading and the rows as aligned lines; nothing if there are no rows.

    What people copy, a name of any length, belongs in the last column.
    """
    rows = iter(rows)
    sample = list(islice(rows, SAMPLE))
    if not sample:
        return
    widths = [
        max(min(width(cell), WIDEST) for cell in column)
        for column in zip(heading, *sample, strict=True)
    ]
    for row in chain([heading], sample, rows):
        yield _line(row, widths)


def _line(row: Row, widths: Sequence[int]) -> str:
    *first, last = row
    fitting = [cut(cell, WIDEST) for cell in first]
    cells = (cell + " " * (wide - width(cell)) for cell, wide in zip(fitting, widths, strict=False))
    return GAP.join([*cells, last]).rstrip()


def fields(pairs: Iterable[tuple[str, str]], write: Callable[[str], object]) -> None:
    """Write labels and values below one another, indented."""
    pairs = list(pairs)
    widest = max(width(label) for label, _ in pairs)
    for label, value in pairs:
        write(f"  {label:<{widest}}  {value}")
