"""What the pages of one kind of recipe show and do; each kind has a module that says it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from django import forms
from django.db.models import Model
from django.utils.translation import gettext_lazy

from distlock.admin.actions import ReasonField
from distlock.admin.coordination.cells import Cell, Detail, Ref, TableRow, Text
from distlock.types.lease import Kind

R = TypeVar("R")


class ActionForm(forms.Form):
    """Asks why something is done."""

    reason = ReasonField(help_text=gettext_lazy("It is written to the log with your name."))


def signature(values: dict[str, Any]) -> dict[str, str]:
    """Return what a recipe is told of who does something, and why."""
    return {"reason": values["reason"], "who": values["user"]}


@dataclass(frozen=True, slots=True)
class Done:
    """That an action was done, and what the log says of it: a template and its values.

    The user sees ``count`` in place of the name, and ``why`` it was not done for all.
    """

    log: Text
    values: dict[str, Any] = field(default_factory=dict)
    count: str = ""
    why: Text = ""


@dataclass(frozen=True, slots=True)
class Action(Generic[R]):
    """What users may do to a name, or to a part of it, after they have confirmed it.

    - ``facts``: what it would be done to, by the report of now; None if the token is another now.
    - ``perform``: does it, on another thread; None if the token was another by then.
    """

    name: str
    permission: str
    title: Text
    button: Text
    consequences: Callable[[R, Ref], Sequence[Text]]
    facts: Callable[[R, Ref], Sequence[tuple[Text, Cell]] | None]
    perform: Callable[[Ref, dict[str, Any]], Done | None]
    done: Text
    danger: bool = True
    form: type[forms.Form] = ActionForm
    #: what the fields hold before the user has written anything
    initial: Callable[[R, Ref], dict[str, Any]] | None = None
    #: what the form, as it is filled in, would change
    preview: Callable[[R, Ref, dict[str, Any]], Sequence[tuple[Text, Cell]]] | None = None
    #: seconds that a page waits for it; None: as long as for a backend
    timeout: float | None = None


class RecipePages(ABC, Generic[R]):
    """The pages about one kind of recipe. A report is what a backend was asked for one name."""

    kind: ClassVar[Kind]
    model: ClassVar[type[Model]]
    #: of the list, after the name and the backend
    columns: ClassVar[Sequence[Text]]
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

    @abstractmethod
    def row(self, report: R) -> TableRow:
        """Return the cells of ``columns`` for the list."""

    @abstractmethod
    def detail(self, alias: str, name: str, report: R) -> Detail:
        """Return what the page of this name shows."""
