"""The verbs of ``manage.py locks``, and the parts of its commands about one kind of recipe.

These are ``manage.py locks VERB …`` and ``manage.py locks KIND VERB …``.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Full
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from distlock import audit
from distlock.backends.base import BaseBackend
from distlock.backends.reading import together
from distlock.commands import arguments, exit_codes, output
from distlock.commands.arguments import (
    ALIAS,
    JSON,
    SIGNATURE,
    USING,
    YES,
    Argument,
    ask,
    option,
    prefix_option,
)
from distlock.commands.exit_codes import DONE, FAILED, NOT_HELD, USAGE, epilog, fail
from distlock.recipes.cells import Cell, Columns, Facts, facts_of
from distlock.recipes.description import Effect, Listing, Live, Operation, Option, Ref
from distlock.recipes.recipe import names_of
from distlock.registry import Entry
from distlock.supervisor.processes import Interrupted, ended_by_signals
from distlock.types.values import escaped, quoted

#: the exit codes of verbs that only look; and of those of recipes that may miss it
LOOKING = epilog(DONE, FAILED, USAGE)
_recipe_epilog = partial(epilog, meanings={NOT_HELD: "it does not exist, or has changed"})
_MISSING = (DONE, FAILED, USAGE, NOT_HELD)
MISSING = _recipe_epilog(*_MISSING)
#: by type of option, the arguments for argparse
_TYPES: dict[str, dict[str, Any]] = {
    "text": {},
    "whole": {"type": arguments.whole_number},
    "int": {"type": int},
    "json": {"type": arguments.json_value},
    "flag": {"action": "store_true"},
}


@dataclass(frozen=True, slots=True)
class Verb:
    """One of the things that can be done: what it does, and with which arguments."""

    run: Callable[..., None]
    arguments: Sequence[Argument] = ()
    epilog: str = LOOKING
    #: what the terminal says of it; SUBCOMMANDS of the command have the texts of the others
    help: str = ""

    def add_arguments(self, parser: CommandParser) -> None:
        for add in self.arguments:
            add(parser)


def _name_verb(
    help: str, run: Callable[..., None], more: Sequence[Argument] = (), epilog: str = LOOKING
) -> Verb:
    """Return a verb about a name on one backend: run() gets its Ref, and the other arguments."""

    def run_with(command: BaseCommand, *, using: str, name: str, **others: Any) -> None:
        run(command, Ref(using, name), **others)

    name = option("name NAME", "Its name.", type=arguments.name)
    return Verb(run_with, (name, ALIAS, *more), epilog, help)


@dataclass(frozen=True)
class RecipeCommand:
    """``manage.py locks KIND``: its list, what is known of a name, and what can be done with it."""

    entry: Entry
    epilog: ClassVar[str] = LOOKING

    @property
    def _verbs(self) -> dict[str, Verb]:
        describes = self.entry.description
        several = (USING, prefix_option("names that begin"), JSON)
        codes = MISSING if describes.missing else LOOKING
        return {
            "list": Verb(self._list, several, help=describes.list_help),
            describes.show: _name_verb(describes.show_help, self._show, (JSON,), codes),
            **{name: self._verb(name, what) for name, what in describes.verbs.items()},
        }

    def _verb(self, name: str, what: Operation | Listing[Any] | Live) -> Verb:
        if isinstance(what, Live):
            return _name_verb(what.help, partial(_draw, what), (), MISSING)
        if isinstance(what, Listing):
            codes = MISSING if what.missing else LOOKING
            return _name_verb(what.help, partial(_list_parts, name, what), (JSON,), codes)
        ends = [exit_codes.DECLINED] * what.asks + [exit_codes.BUSY] * what.fills
        codes, more = _recipe_epilog(*_MISSING, *ends), (*[YES] * what.asks, *SIGNATURE)
        options = (*_arguments(what.options), *more)
        return _name_verb(what.help, partial(_operate, what), options, codes)

    def add_arguments(self, parser: CommandParser) -> None:
        """Give each of its verbs a parser of its own, with Django's options and the verb's."""
        parsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for name, verb in self._verbs.items():
            subparser = parsers.add_parser(
                name, help=verb.help, description=verb.help, epilog=verb.epilog
            )
            arguments.add_common(subparser, parser)
            verb.add_arguments(subparser)

    def run(self, command: BaseCommand, *, verb: str, **options: Any) -> None:
        self._verbs[verb].run(command, **options)

    def _list(
        self, command: BaseCommand, *, using: Collection[str] | None, prefix: str, **options: Any
    ) -> None:
        backends, describes = arguments.Backends(using), self.entry.description

        def listed(backend: BaseBackend) -> Iterable[tuple[str, str, Any]]:
            names = names_of(self.entry.kind, backend.alias, prefix)
            for name, report in together(names, partial(describes.report, backend.alias)):
                yield backend.alias, name, report

        found = backends.ask(listed)
        if options["json"]:
            entries = [
                {"using": alias, "name": name, **self._fields(report)}
                for alias, name, report in found
            ]
            document = {self.entry.plural: entries, "unavailable": backends.failures}
            output.write_json(command, document)
        else:
            columns = _heading(describes.columns)
            rows = [
                (quoted(name), *_texts(describes.row(report)), alias)
                for alias, name, report in found
            ]
            nothing = "" if backends.failures else f"No {self.entry.kind}."
            optional = ("BACKEND", *columns[:0:-1])
            heading = ("NAME", *columns, "BACKEND")
            output.write_table(command, heading, rows, optional=optional, nothing=nothing)
        backends.finish()

    def _show(self, command: BaseCommand, ref: Ref, *, json: bool, **others: object) -> None:
        describes = self.entry.description
        report = ask(ref.alias, lambda: describes.read(ref))
        raw, missing = describes.raw(report), ""
        if describes.missing and not describes.is_there(report):
            missing = describes.missing.format(ref.exact)
            if raw or report is None:
                fail(NOT_HELD, missing)
        if json:
            _write_json(command, ref, self._fields(report))
        elif raw:
            command.stdout.write(raw)
        else:
            detail = describes.detail(ref, report)
            command.stdout.write(ref.where)
            _write_facts(command, detail.facts)
            for table in detail.tables:
                if table.id not in describes.verbs:  # else that verb lists it
                    _write_table(command, table.columns, table.items)
        if missing:
            fail(NOT_HELD, missing)

    def _fields(self, report: Any) -> dict[str, Any]:
        """Return what an object of JSON has of a report, besides backend and name."""
        said = output.plain(report)
        return said if isinstance(said, dict) else {self.entry.description.entries: said}


def _list_parts(
    key: str, listing: Listing[Any], command: BaseCommand, ref: Ref, *, json: bool, **others: object
) -> None:
    items = ask(ref.alias, lambda: listing.read(ref))
    if json:
        _write_json(command, ref, {key: output.plain(items)})
    else:
        _write_table(command, listing.columns, items, listing.nothing)
    if listing.missing and not items:
        fail(NOT_HELD, listing.missing.format(ref.exact))


def _draw(live: Live, command: BaseCommand, ref: Ref, **others: object) -> None:
    """Write the lines until they end; on a terminal each in the place of the one before."""
    terminal = sys.stdout.isatty()
    before, after = ("\r\x1b[K", "") if terminal else ("", "\n")

    def draw() -> None:
        for line in live.lines(ref, lambda: shutil.get_terminal_size().columns):
            command.stdout.write(f"{before}{line}", ending=after)
            command.stdout.flush()

    with suppress(Interrupted, KeyboardInterrupt), ended_by_signals():
        ask(ref.alias, draw)
    if terminal:
        command.stdout.write("")


def _operate(operation: Operation, command: BaseCommand, ref: Ref, **options: Any) -> None:
    """Ask, if that is asked for, and do it; end the command if it cannot be done."""
    proposal = ask(ref.alias, lambda: operation.propose(ref, options))
    ref, perform = proposal.ref, proposal.perform
    if proposal.question:
        _write_facts(command, proposal.facts)
        for sentence in proposal.explanation:
            command.stdout.write(str(sentence))
    if perform is None:
        return
    if proposal.question:
        exit_codes.confirm(command, options["interactive"], proposal.question)
    signed = {**options, "who": options["who"] or audit.system_user()}
    effect = ask(ref.alias, lambda: perform(ref, signed))
    if not effect:
        fail(NOT_HELD, f"{proposal.missing} any more; nothing was done")
    effect = Effect() if effect is True else effect
    shown = {"where": ref.where, "target": quoted(ref.target), "token": ref.token}
    text = proposal.done % {**options, **shown, **effect.values}
    command.stdout.write(command.style.SUCCESS(text) if proposal.question else text)
    if effect.why:
        full = isinstance(effect.why, Full)
        fail(exit_codes.BUSY if full else FAILED, escaped(str(effect.why)))


def _arguments(options: Iterable[Option]) -> Iterator[Argument]:
    def added(one: Option) -> Argument:
        required = {"required": True} if one.required else {}
        return option(one.what, one.help, **_TYPES[one.type], **required)

    yield from (added(one) for one in options if not one.either)
    if either := [added(one) for one in options if one.either]:

        def add(parser: Any) -> None:
            group = parser.add_mutually_exclusive_group(required=True)
            for each in either:
                each(group)

        yield add


# How cells are written


def _texts(facts: Facts) -> output.Row:
    return [output.text_of(cell) for _, cell in facts]


def _heading(columns: Columns[Any]) -> tuple[str, ...]:
    return tuple(str(label).upper() for label, _ in columns)


def _write_table(
    command: BaseCommand, columns: Columns[Any], items: Iterable[Any], nothing: str = ""
) -> None:
    rows = [_texts(facts_of(columns, item)) for item in items]
    output.write_table(command, _heading(columns), rows, nothing=nothing)


def _write_facts(command: BaseCommand, facts: Facts) -> None:
    def drawn(cell: Cell) -> object:
        bar = f"[{'#' * (cell.percent // 5):20}] " if cell.format == "bar" else ""
        return f"{bar}{output.text_of(cell)}" if bar else output.text_of(cell)

    if facts:
        output.write_fields(command, [(str(label).lower(), drawn(cell)) for label, cell in facts])


def _write_json(command: BaseCommand, ref: Ref, fields: Mapping[str, object]) -> None:
    output.write_json(command, {"using": ref.alias, "name": ref.name, **fields})
