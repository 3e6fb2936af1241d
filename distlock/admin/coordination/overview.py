"""The list of one kind of recipe: a card for each backend, and one page of the names in them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from distlock.admin.coordination.cells import TableRow
from distlock.admin.coordination.recipe_pages import RecipePages
from distlock.fan_out import BackendAnswer, call_backends
from distlock.recipes.recipe import names_of

#: Names on a page.
PAGE_SIZE = 50
#: Names whose rows are searched if no name matches.
_MOST_SEARCHED = 200


@dataclass(frozen=True, slots=True)
class RecipeCard:
    """One backend: whether it answers, how fast, and how many names it has."""

    alias: str
    backend: str = ""  # its kind; empty if its settings are wrong
    count: int | None = None  # None if it does not answer
    problem: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, answer: BackendAnswer[list[str]]) -> RecipeCard:
        """Return the card of a backend that was asked for its names."""
        kind = type(answer.backend).__name__.removesuffix("Backend") if answer.backend else ""
        count = None if answer.value is None else len(answer.value)
        return cls(answer.alias, kind, count, answer.problem, answer.seconds)


@dataclass(frozen=True, slots=True)
class RecipeRow:
    """A name in the list. ``line`` is None if it could not be read, ``problem`` says why."""

    alias: str
    name: str
    line: TableRow | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """What the list shows; ``page`` counts from 1."""

    cards: list[RecipeCard]
    rows: list[RecipeRow]
    found: int
    page: int
    pages: int
    unsearched: int = 0  # names that do not match, and whose rows have not been searched

    @property
    def previous(self) -> int:
        """The number of the page before this one; 0 if this is the first."""
        return self.page - 1

    @property
    def next(self) -> int:
        """The number of the page after this one; 0 if this is the last."""
        return self.page + 1 if self.page < self.pages else 0

    @property
    def silent(self) -> bool:
        """Whether a backend has not answered."""
        return any(card.count is None for card in self.cards)


def overview(
    recipe: RecipePages[Any],
    aliases: list[str],
    *,
    backend: str = "",
    search: str = "",
    page: int = 1,
    wait_for_silent: bool = True,
) -> Overview:
    """Ask all backends for names, and then for what the names on this page stand for.

    If no name matches a search, it goes on in what the rows of the list show.
    """
    answers = call_backends(
        aliases,
        lambda each, deadline: names_of(recipe.kind, each.alias),
        wait_for_silent=wait_for_silent,
    )
    every = sorted(
        (name, alias)
        for alias, answer in answers.items()
        if backend in ("", alias)
        for name in answer.value or ()
    )
    found, unsearched = [each for each in every if search.casefold() in each[0].casefold()], 0
    if search and not found:
        read = _rows(recipe, every[:_MOST_SEARCHED])
        found = [(row.name, row.alias) for row in read if row.line and row.line.mentions(search)]
        unsearched = len(every) - len(read)
    pages = max(-(-len(found) // PAGE_SIZE), 1)
    page = min(max(page, 1), pages)
    shown = found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    return Overview(
        cards=[RecipeCard.of(answer) for answer in answers.values()],
        rows=_rows(recipe, shown),
        found=len(found),
        page=page,
        pages=pages,
        unsearched=unsearched,
    )


def _rows(recipe: RecipePages[Any], shown: list[tuple[str, str]]) -> list[RecipeRow]:
    by_alias = {
        alias: [name for name, _ in group]
        for alias, group in groupby(sorted(shown, key=_alias_of), _alias_of)
    }

    def read(alias: str, name: str) -> Any:
        try:
            return recipe.read(alias, name, whole=False)
        except (TypeError, ValueError) as error:  # a bound that is no number; others are shown
            return error

    reports = call_backends(
        by_alias,
        lambda each, deadline: {name: read(each.alias, name) for name in by_alias[each.alias]},
    )
    rows = []
    for name, alias in shown:
        answer = reports[alias]
        report = answer.value[name] if answer.value else None
        problem = str(report) if isinstance(report, Exception) else answer.problem
        line = None if report is None or problem else recipe.row(report)
        rows.append(RecipeRow(alias, name, line, problem))
    return rows


def _alias_of(found: tuple[str, str]) -> str:
    return found[1]
