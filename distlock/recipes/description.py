"""The appearance of a recipe, and the actions on it, as plain values.

Each recipe has a subclass of Description, which distlock.registry names. The admin's pages and the
commands of the terminal are made of it: columns and facts of cells, tables, and actions.
Texts are translated only when they are drawn: a report may be read on a thread without a language.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar

from distlock.recipes.cells import (
    Columns,
    Facts,
    Text,
    facts_of,
)
from distlock.types.values import quoted

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ref:
    """A name on a backend, and what an action is done to there, as a form names it.

    ``token`` is what the page has shown, and is compared; a terminal may say None, which compares
    nothing. ``target`` names a part of it: a candidate, a member, an item.
    """

    alias: str
    name: str
    token: int | None = 0
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

    @property
    def where(self) -> str:
        """The name and its backend, as a terminal shows them."""
        return f"{quoted(self.name)} on {self.alias}"

    @property
    def exact(self) -> str:
        """The same for an error."""
        return f"{self.name!r} on {self.alias!r}"

    def of(self, token: int | None, target: str = "") -> Ref:
        """Return what the name has under a token: a part of it, or all of it."""
        return Ref(self.alias, self.name, token, target)

    def recipe(self, make: Callable[..., T], **options: Any) -> T:
        """Return the recipe of this name."""
        return make(self.name, using=self.alias, **options)


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

    cells: Facts
    offers: Sequence[Offer]
    key: str


@dataclass(frozen=True)
class Table(Generic[R]):
    """A table of items; ``empty`` is shown in its place if there are none.

    ``offers_of`` are the buttons of an item, ``key_of`` names one that can be selected. ``offers``
    are for the rows that were selected, and for those on other pages. ``pages`` are the addresses
    of the page before, and of the next one.
    """

    id: str
    title: Text
    columns: Columns[R]
    items: Iterable[R]
    empty: Text = ""
    hint: Text = ""
    offers_of: Callable[[R], Sequence[Offer]] = lambda item: ()
    key_of: Callable[[R], str] = lambda item: ""
    offers: Sequence[Offer] = ()
    pages: tuple[str, str] = ("", "")

    @cached_property
    def rows(self) -> Sequence[TableRow]:
        """The rows, ready to be drawn."""
        return [
            TableRow(facts_of(self.columns, item), self.offers_of(item), self.key_of(item))
            for item in self.items
        ]

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
    """What is known of one name. ``explanation`` are sentences on what that means.

    ``part`` is the title of a page about a part of it. ``tabs`` are of the tables: label, number,
    and address, empty for those that are shown. ``search`` is what the form above them has.
    """

    facts: Facts
    tables: Sequence[Table[Any]] = ()
    explanation: Sequence[Text] = ()
    offers: Sequence[Offer] = ()
    part: Text = ""
    tabs: Sequence[tuple[Text, int, str]] = ()
    search: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """An action that was done, with more values for its message.

    A page shows ``count`` in place of the name. ``why`` is the reason, or the error, for which it
    was not done for all.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    count: str = ""
    why: Text | Exception = ""


#: Does something. It gets what the user has filled in, with ``reason`` and ``who``, and returns
#: None or False, or raises StaleToken, if the token was another one by then.
Perform = Callable[[Ref, dict[str, Any]], Effect | bool | None]


def signature(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which a recipe writes to the audit log: who, and why."""
    return {"reason": values["reason"], "who": values["who"]}


class Missing(LookupError):
    """The object of a verb does not exist; the text says so."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The plan of a verb of the terminal.

    - ``perform``: see Perform; None if there is nothing to do.
    - ``done``: what is written then, a template for ``where``, ``target``, ``token``, the options,
      and the values of Effect.
    - ``question``: asked before, below ``facts`` and ``explanation``; nothing is asked without it.
    - ``missing``: that what it is about is not there.
    """

    ref: Ref
    perform: Perform | None
    done: str
    question: str = ""
    missing: str = ""
    facts: Facts = ()
    explanation: Sequence[Text] = ()


@dataclass(frozen=True, slots=True)
class JsonInput:
    """A field for JSON in the form of an action, beside that for the reason."""

    name: str
    label: Any  # a Text; that of Django's types is another one
    help: Any


@dataclass(frozen=True, slots=True)
class Action(Generic[R]):
    """An action that users may take on a name, or on a part of it, after they have confirmed it.

    - ``facts``: its object, by the report of now; None if the token has changed.
    - ``perform``: does it, on another thread.
    - ``log``: what the log says then, a template for the values of the form, ``target``, ``token``
      and those of Effect.
    """

    name: str
    permission: str
    title: Text
    button: Text
    consequences: Callable[[R, Ref], Sequence[Text]]
    facts: Callable[[R, Ref], Facts | None]
    perform: Perform
    log: Text
    done: Text
    danger: bool = True
    value: JsonInput | None = None
    #: what becomes of the reason, if not only the log has it
    reason_help: Text = ""
    #: what the field holds before the user has written anything
    initial: Callable[[R, Ref], str] | None = None
    #: what the form, as it is filled in, would change
    preview: Callable[[R, Ref, dict[str, Any]], Facts] | None = None
    #: seconds that a page waits for it; None: as long as for a backend
    timeout: float | None = None

    def proposal(
        self, report: R, ref: Ref, done: str, missing: str, question: str = ""
    ) -> Proposal:
        """Return how a terminal does it; Missing if the token is another now."""
        facts = self.facts(report, ref)
        if facts is None:
            raise Missing(missing)
        explanation = self.consequences(report, ref)
        return Proposal(ref, self.perform, done, question, missing, facts, explanation)


@dataclass(frozen=True, slots=True)
class Option:
    """An argument of a verb; ``what`` is as in its usage: ``candidate CANDIDATE`` or ``--term``.

    Of those that are ``either`` exactly one has to be given.
    """

    what: str
    help: str
    type: Literal["text", "whole", "int", "json", "flag"] = "text"
    required: bool = False
    either: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """A verb that changes a name; it also takes the options of who does it, and why.

    ``propose`` gets the name, and what the options say; it raises Missing if that is not there.
    """

    help: str
    propose: Callable[[Ref, dict[str, Any]], Proposal]
    options: Sequence[Option] = ()
    asks: bool = False
    #: whether there may be no room for it
    fills: bool = False


def operation(
    help: str, *options: Option, asks: bool = False, fills: bool = False
) -> Callable[[Callable[[Ref, dict[str, Any]], Proposal]], Operation]:
    """Make an Operation of the function that proposes it, as a decorator."""
    return lambda propose: Operation(help, propose, options, asks, fills)


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """A verb that lists what belongs to a name; JSON has it under the word of the verb.

    ``nothing`` is written if the list is empty; ``missing`` is an error then, which names it in
    place of ``{}``.
    """

    help: str
    read: Callable[[Ref], Sequence[R]]
    columns: Columns[R]
    nothing: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Live:
    """A verb that draws a line again until it ends; it gets the width of the terminal each time."""

    help: str
    lines: Callable[[Ref, Callable[[], int]], Iterator[str]]


class Description(ABC, Generic[R]):
    """What one recipe looks like. A report is what a backend was asked for one name."""

    #: the class whose info() is a report; see read()
    recipe: ClassVar[Any]
    #: of the list, after the name and the backend
    columns: ClassVar[Columns[Any]]
    #: what the list of the admin says when there is nothing of the kind
    empty: ClassVar[Text]
    actions: ClassVar[Sequence[Action[Any]]] = ()
    #: whether a page refreshes itself unless its reader has said no
    live: ClassVar[bool] = False

    #: what the terminal says of the commands that list and show
    list_help: ClassVar[str] = "List them."
    show_help: ClassVar[str] = "Show one."
    #: the verb that shows a name
    show: ClassVar[str] = "show"
    #: what it says, with the name in place of ``{}``, where nobody is: see is_there()
    missing: ClassVar[str] = ""
    verbs: ClassVar[Mapping[str, Operation | Listing[Any] | Live]] = {}
    #: what JSON calls a report that is a list
    entries: ClassVar[str] = "entries"
    #: whether ``locks top`` asks for the problems of each name
    watched: ClassVar[bool] = False

    def read(self, ref: Ref) -> R:
        """Ask a backend for a name, on a thread that may block and knows no language."""
        return ref.recipe(self.recipe).info()  # type: ignore[no-any-return]

    def report(self, alias: str, name: str) -> R:
        """See read()."""
        return self.read(Ref(alias, name))

    def is_there(self, report: R) -> bool:
        """Return whether a name is in use."""
        return bool(report)

    def problems(self, report: R) -> Iterable[tuple[str, str]]:
        """Return what is wrong with a name: a word, and what is known of it."""
        return ()

    def raw(self, report: R) -> str:
        """Return what a terminal shows in place of facts and tables, if anything."""
        return ""

    def row(self, report: R) -> Facts:
        """Return the cells of ``columns`` for the list."""
        return facts_of(self.columns, report)

    @abstractmethod
    def detail(self, ref: Ref, report: R) -> Detail:
        """Return what is known of a name."""

    # A page of the admin may show more than a terminal, and be about a part of it.

    def read_page(self, ref: Ref, asked: Mapping[str, str]) -> Any:
        """Read what the page of a name shows; ``asked`` is the query of the address."""
        return self.read_target(ref)

    def page(self, ref: Ref, report: Any) -> Detail:
        """Return what the page of a name shows."""
        return self.detail(ref, report)

    def read_target(self, ref: Ref) -> Any:
        """Read what an action is about."""
        return self.read(ref)
