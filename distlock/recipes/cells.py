"""Values that are ready to be shown: a cell with its format, a state, facts, columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from distlock.types.lease import Holder

R = TypeVar("R")

#: Characters of a value that a table shows: on its line, and once it was opened. A value of no more
#: than the third number need not be opened.
_MOST_DATA, _MOST_OPENED, _ONE_LINE = 300, 4000, 24

#: A text that may be translated only when it is drawn.
Text = str | Promise

#: How a value is drawn, see templates/admin/distlock/coordination/_cell.html: ``span`` is a length
#: of time in seconds, ``moment`` a time, ``age`` the time since then; ``data`` is any JSON,
#: ``block`` lines of text, ``diff`` pairs of a sign and a line, ``bar`` a share of 1.
CellFormat = Literal[
    "text",
    "mono",
    "number",
    "owner",
    "span",
    "moment",
    "age",
    "data",
    "block",
    "diff",
    "state",
    "bar",
]

#: A value as JSON on one line, and on several.
json_line = partial(json.dumps, ensure_ascii=False)
json_lines = partial(json_line, indent=2)


def some_of(texts: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """Return the first of many texts; without ``most`` as many as a row of a list has."""
    return between.join([*texts[:most], *["…"][: len(texts) - most]])


@dataclass(frozen=True, slots=True)
class Cell:
    """One value. None is drawn as a dash, ``hint`` below it in small letters.

    ``style`` is the colour of a state: held, expiring, expired, suspended or free. ``code`` is what
    a terminal shows in place of a label, or of none. ``link`` is the address that it leads to. A
    confidential text is that of an error, which is drawn only for users who may see such texts.
    """

    value: Any
    format: CellFormat = "text"
    style: str = "free"
    hint: Any = ""
    link: str = ""
    confidential: bool = False
    code: str = ""

    @property
    def line(self) -> str:
        """A text as it is, all else as JSON."""
        return self.value if isinstance(self.value, str) else json_line(self.value)

    @property
    def text(self) -> str:
        """Data as JSON."""
        text = self.line
        return text if len(text) <= _MOST_DATA else f"{text[: _MOST_DATA - 1]}…"

    @property
    def opened(self) -> str:
        """Data as lines of JSON, if they say more than one line of a table shows."""
        line = self.line
        if len(line) <= _ONE_LINE and "\n" not in line:
            return ""
        text = line if isinstance(self.value, str) else json_lines(self.value)
        return text if len(text) <= _MOST_OPENED else f"{text[: _MOST_OPENED - 1]}…"

    @property
    def seconds(self) -> float:
        """Seconds since a time."""
        return (datetime.now(UTC) - self.value).total_seconds()  # type: ignore[no-any-return]

    @property
    def percent(self) -> int:
        """A share of 1 as a percentage, for a bar."""
        return int(100 * min(max(self.value, 0.0), 1.0))


def state(code: str, label: Text, style: str = "free") -> Cell:
    """Return a state: its code for terminals, what people call it, and its colour."""
    return Cell(label, "state", style, code=code)


#: Labels with their values: what a list on a page shows, and a row of a table.
Facts = Sequence[tuple[Text, Cell]]


#: Columns of a table: the label of each, and what makes its cell of an item.
Columns = Sequence[tuple[Text, Callable[[R], Cell]]]


def facts_of(columns: Columns[R], item: R | None) -> Facts:
    """Return the row of an item: dashes if there is none."""
    return [(label, Cell(None) if item is None else cell(item)) for label, cell in columns]


#: of those who wait, for whatever
WAITING: Columns[Holder] = (
    (_("Owner"), lambda holder: Cell(holder.owner, "owner")),
    (_("For"), lambda holder: Cell(holder.since, "age")),
    (_("Description"), lambda holder: Cell(holder.description)),
    (_("Token"), lambda holder: Cell(holder.token, "number")),
)
