"""Tables for people. They fit into a terminal; elsewhere nothing is cut, nor left out."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

Row = Sequence[str]

#: Where nothing is cut, a longer cell does not widen its column, but only its own line.
WIDEST = 48
#: Columns of the terminal that long cells keep, before a whole column is left out.
READABLE = 14
GAP = "  "


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes: a Chinese character takes two."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.category(each) in ("Mn", "Me") for each in text)


def cut(text: str, width: int, *, middle: bool = False) -> str:
    """Return a text that takes no more than ``width``; ``middle``: both of its ends are kept."""
    if cells(text) <= width:
        return text
    kept = (width - 1) // 2 if middle else 0
    end = text[len(text) - kept :]
    while cells(end) > kept:
        end = end[1:]
    start = text[:width]
    while start and cells(start) + cells(end) >= width:
        start = start[:-1]
    return f"{start}…{end}"


def table_lines(
    heading: Row, rows: Iterable[Row], width: int | None = None, optional: Sequence[str] = ()
) -> list[str]:
    """Return the heading and the rows as aligned lines; nothing if there are no rows.

    They take ``width`` columns of a terminal at the most: long cells are cut. Where that would
    leave too little of them, columns with the headings ``optional`` are left out, first those that
    say the same in each row, then from the first heading on. None is for no terminal.
    """
    table = [heading, *rows]
    if len(table) == 1:
        return []
    columns = list(zip(*table, strict=True))
    if width is None:
        return _aligned(columns, WIDEST)
    spare = sorted(
        (each for each in columns if each[0] in optional),
        key=lambda each: (len(set(each[1:])) > 1, optional.index(each[0])),
    )
    while spare and _longest_cell(columns, width) < min(READABLE, width):
        columns.remove(spare.pop(0))
    most = _longest_cell(columns, width)
    shown = [
        [cut(each, most, middle=column is columns[0]) for each in column] for column in columns
    ]
    return [cut(line, width) for line in _aligned(shown, width)]


def _longest_cell(columns: Sequence[Row], width: int) -> int:
    """Return to what long cells have to be cut, so that no line is wider."""
    widths = [max(map(cells, column)) for column in columns]
    room = width - len(GAP) * (len(widths) - 1)
    if sum(widths) <= room:
        return width  # nothing has to be cut
    fitting = (most for most in range(width, 1, -1) if sum(min(w, most) for w in widths) <= room)
    return next(fitting, 1)


def _aligned(columns: Sequence[Row], widest: int) -> list[str]:
    *padded, last = columns
    widths = [min(max(map(cells, column)), widest) for column in padded]
    lines = []
    for *row, end in zip(*padded, last, strict=True):
        gaps = [" " * max(width - cells(each), 0) for each, width in zip(row, widths, strict=True)]
        lines.append(GAP.join([*map(str.__add__, row, gaps), end]).rstrip())
    return lines
