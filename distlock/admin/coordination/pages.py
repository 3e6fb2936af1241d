"""What the pages of a kind of recipe show and do, as plain values that are ready to be drawn.

Each kind has a subclass of RecipePages. A page has facts and tables of cells, and offers actions.
Texts are translated only when they are drawn: a report may be read on a thread without a language.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Generic, Literal, TypeVar

from django import forms
from django.db.models import Model
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from distlock.admin.actions import ReasonField
from distlock.types.lease import Kind

R = TypeVar("R")

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
    def _line(self) -> str:
        """A text as it is, all else as JSON."""
        return self.value if isinstance(self.value, str) else json_line(self.value)

    @property
    def text(self) -> str:
        """Data as JSON."""
        text = self._line
        return text if len(text) <= _MOST_DATA else f"{text[: _MOST_DATA - 1]}…"

    @property
    def opened(self) -> str:
        """Data as lines of JSON, if they say more than one line of a table shows."""
        line = self._line
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


#: Labels with their values: what a list on a page shows, and a row of a table.
Facts = Sequence[tuple[Text, Cell]]
#: Columns of a table: the label of each, and what makes its cell of an item.
Columns = Sequence[tuple[Text, Callable[[R], Cell]]]


def facts_of(columns: Columns[R], item: R | None) -> Facts:
    """Return the row of an item: dashes if there is none."""
    return [(label, Cell(None) if item is None else cell(item)) for label, cell in columns]


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table; its first cell names it, and ``key`` what is selected by its box."""

    cells: Facts
    offers: Sequence[Offer] = ()
    key: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; ``empty`` is shown in its place if it has no rows.

    ``offers`` are for the rows that were selected, and for those on other pages. ``pages`` are the
    addresses of the page before, and of the next one.
    """

    id: str
    title: Text
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


def rows_of(
    columns: Columns[R],
    items: Iterable[R],
    offers: Callable[[R], Sequence[Offer]] = lambda item: (),
) -> list[TableRow]:
    """Return the rows of a table of items, with the buttons of each."""
    return [TableRow(facts_of(columns, item), offers(item)) for item in items]


@dataclass(frozen=True, slots=True)
class Detail:
    """What the page of one name shows. ``explanation`` are sentences on what that means.

    ``part`` is the title of a page about a part of it. ``tabs`` are of the tables: label, number,
    and address, empty for those that are shown. ``search`` is what the form above them has.
    """

    facts: Facts
    tables: Sequence[Table] = ()
    explanation: Sequence[Text] = ()
    offers: Sequence[Offer] = ()
    part: Text = ""
    tabs: Sequence[tuple[Text, int, str]] = ()
    search: Mapping[str, str] | None = None


#: A value as JSON on one line, and on several.
json_line = partial(json.dumps, ensure_ascii=False)
json_lines = partial(json_line, indent=2)


def some_of(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first of many texts."""
    return between.join([*texts[:most], *["…"][: len(texts) - most]])


class ActionForm(forms.Form):
    """Asks why something is done."""

    reason = ReasonField(help_text=_("It is written to the log with your name."))


def signature(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with which a recipe writes to the audit log: the user, and why."""
    return {"reason": values["reason"], "who": values["user"]}


@dataclass(frozen=True, slots=True)
class Effect:
    """That an action was done, and more values for what the log says of it.

    The user sees ``count`` in place of the name, and ``why`` it was not done for all.
    """

    values: dict[str, Any] = field(default_factory=dict)
    count: str = ""
    why: Text = ""


@dataclass(frozen=True, slots=True)
class Action(Generic[R]):
    """What users may do to a name, or to a part of it, after they have confirmed it.

    - ``facts``: what it would be done to, by the report of now; None if the token is another now.
    - ``perform``: does it, on another thread; None, False or StaleToken if the token was another
      one by then.
    - ``log``: what the log says then, a template for the values of the form, ``target``, ``token``
      and those of Effect.
    """

    name: str
    permission: str
    title: Text
    button: Text
    consequences: Callable[[R, Ref], Sequence[Text]]
    facts: Callable[[R, Ref], Facts | None]
    perform: Callable[[Ref, dict[str, Any]], Effect | bool | None]
    log: Text
    done: Text
    danger: bool = True
    form: type[forms.Form] = ActionForm
    #: what the fields hold before the user has written anything
    initial: Callable[[R, Ref], dict[str, Any]] | None = None
    #: what the form, as it is filled in, would change
    preview: Callable[[R, Ref, dict[str, Any]], Facts] | None = None
    #: seconds that a page waits for it; None: as long as for a backend
    timeout: float | None = None


class RecipePages(ABC, Generic[R]):
    """The pages about one kind of recipe. A report is what a backend was asked for one name."""

    kind: ClassVar[Kind]
    model: ClassVar[type[Model]]
    #: of the list, after the name and the backend
    columns: ClassVar[Columns[Any]]
    #: what the list says when there is nothing of the kind
    empty: ClassVar[Text]
    actions: ClassVar[Sequence[Action[Any]]] = ()
    #: the command that shows a name
    show: ClassVar[str] = "show"
    #: whether a page refreshes itself unless its reader has said no
    live: ClassVar[bool] = False

    @abstractmethod
    def read(self, alias: str, name: str, *, whole: bool) -> R:
        """Ask a backend, on a thread that may block and knows no language.

        ``whole`` for the page of this name, else for its row in the list.
        """

    def read_page(self, alias: str, name: str, asked: Mapping[str, str]) -> R:
        """Read what its own page shows; ``asked`` is the query of the address."""
        return self.read(alias, name, whole=True)

    def read_target(self, ref: Ref) -> R:
        """Read what an action is about."""
        return self.read(ref.alias, ref.name, whole=True)

    def row(self, report: R) -> Facts:
        """Return the cells of ``columns`` for the list."""
        return facts_of(self.columns, report)

    @abstractmethod
    def detail(self, alias: str, name: str, report: R) -> Detail:
        """Return what the page of this name shows."""
