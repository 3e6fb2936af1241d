"""What a page of a recipe shows, ready to be drawn: values, facts, tables and what may be done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from django.utils.functional import Promise

#: A text that may be translated only when it is drawn.
Text = str | Promise

#: How a value is drawn, see templates/admin/distlock/coordination/_cell.html. ``span`` is a length
#: of time in seconds, ``moment`` a time, ``age`` how long ago that is, ``data`` anything that is
#: JSON, ``block`` lines of text, ``diff`` pairs of a sign and a line, ``bar`` a share of 1.
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

#: Characters of a value that a table shows: on its line, and once it was opened. What has no more
#: than the third number of them needs not be opened.
_MOST_DATA, _MOST_OPENED, _ONE_LINE = 300, 4000, 24


@dataclass(frozen=True, slots=True)
class Cell:
    """One value. None is drawn as a dash, ``hint`` below it in small letters.

    ``style`` is the colour of a state: held, expiring, expired, suspended or free. ``link`` is the
    address that it leads to. A confidential text is that of an error, which is drawn only for users
    who may see such texts.
    """

    value: Any
    format: CellFormat = "text"
    style: str = "free"
    hint: Any = ""
    link: str = ""
    confidential: bool = False

    @property
    def text(self) -> str:
        """Data as JSON."""
        text = as_json(self.value)
        return text if len(text) <= _MOST_DATA else f"{text[: _MOST_DATA - 1]}…"

    @property
    def opened(self) -> str:
        """Data as lines of JSON, if they say more than one line of a table shows."""
        line = as_json(self.value)
        if len(line) <= _ONE_LINE and "\n" not in line:
            return ""
        text = line if isinstance(self.value, str) else pretty(self.value)
        return text if len(text) <= _MOST_OPENED else f"{text[: _MOST_OPENED - 1]}…"

    @property
    def seconds(self) -> float:
        """Seconds since a time."""
        return (datetime.now(UTC) - self.value).total_seconds()  # type: ignore[no-any-return]

    @property
    def percent(self) -> int:
        """A share of 1 as a percentage, for a bar."""
        return int(100 * min(max(self.value, 0.0), 1.0))


@dataclass(frozen=True, slots=True)
class Ref:
    """What an action is done to, as a form names it.

    ``token`` is what the page has shown, and is compared; ``target`` names a part of it: a
    candidate, a member, an item.
    """

    alias: str
    name: str
    token: int = 0
    target: str = ""

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Return the reference that str() wrote; ValueError or RecursionError for other texts."""
        match json.loads(text):
            case [str(alias), str(name), int(token), str(target)]:
                (name + target).encode()  # half of a surrogate pair is a ValueError
                return cls(alias, name, token, target)
        raise ValueError(f"{text!r} names nothing that something can be done to")

    def __str__(self) -> str:
        return json.dumps([self.alias, self.name, self.token, self.target])


@dataclass(frozen=True, slots=True)
class Offer:
    """A button that asks for an action; ``named`` tells it from others for who cannot see."""

    action: str
    label: Text
    ref: Ref
    danger: bool = False
    named: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table; its first cell names it, and ``key`` what is selected by its box."""

    cells: Sequence[Cell]
    offers: Sequence[Offer] = ()
    key: str = ""

    def mentions(self, text: str) -> bool:
        """Return whether a value that everybody may see has this text, in any case of letters."""
        shown = (f"{cell.value} {cell.hint}" for cell in self.cells if not cell.confidential)
        return any(text.casefold() in each.casefold() for each in shown)


@dataclass(frozen=True, slots=True)
class Table:
    """A table; ``empty`` is shown in its place if it has no rows.

    ``offers`` are for the rows that were selected, and for those on other pages. ``pages`` are the
    addresses of the page before, and of the next one.
    """

    id: str
    title: Text
    columns: Sequence[Text]
    rows: Sequence[TableRow]
    empty: Text = ""
    hint: Text = ""
    offers: Sequence[Offer] = ()
    pages: tuple[str, str] = ("", "")

    @property
    def acts(self) -> bool:
        """Whether any row has a button."""
        return any(row.offers for row in self.rows)

    @property
    def selects(self) -> bool:
        """Whether rows can be selected."""
        return any(row.key for row in self.rows)


@dataclass(frozen=True, slots=True)
class Detail:
    """What the page of one name shows. ``explanation`` are sentences on what that means.

    ``part`` is the title of a page about a part of it. ``tabs`` are of the tables: label, number,
    and address, empty for those that are shown. ``search`` is what the form above them has.
    """

    facts: Sequence[tuple[Text, Cell]]
    tables: Sequence[Table] = ()
    explanation: Sequence[Text] = ()
    offers: Sequence[Offer] = ()
    part: Text = ""
    tabs: Sequence[tuple[Text, int, str]] = ()
    search: Mapping[str, str] | None = None


def as_json(value: Any) -> str:
    """Return a value for people: a text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def pretty(value: Any) -> str:
    """Return a value as JSON in several lines."""
    return json.dumps(value, ensure_ascii=False, indent=2)
