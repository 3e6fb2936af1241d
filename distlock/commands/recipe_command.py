"""What the commands about one kind of recipe share: ``manage.py locks KIND VERB …``."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from django.core.management.base import BaseCommand, CommandParser

from distlock.backends.base import BaseBackend
from distlock.commands import arguments, output
from distlock.commands.exit_codes import (
    DECLINED,
    DONE,
    FAILED,
    NOT_HELD,
    USAGE,
    epilog,
    fail,
)
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import LockError, NotSupported, StaleToken
from distlock.recipes.recipe import names_of
from distlock.types.lease import Kind, Owner

T = TypeVar("T")

#: what the list of a kind is called in JSON
PLURALS = {
    Kind.ELECTION: "elections",
    Kind.GROUP: "groups",
    Kind.BARRIER: "barriers",
    Kind.DOUBLE_BARRIER: "double_barriers",
    Kind.EVENT: "events",
    Kind.QUEUE: "queues",
    Kind.CONFIG: "configs",
    Kind.TOPIC: "topics",
    Kind.NAMES: "namespaces",
    Kind.PROGRESS: "progress",
}
NOT_THERE = "it is not there, or has changed"
#: the exit codes of verbs that only look, and of those that ask before they do something
LOOKING, CHANGING, ASKING = (
    (DONE, FAILED, USAGE),
    (DONE, FAILED, USAGE, NOT_HELD),
    (DONE, FAILED, USAGE, NOT_HELD, DECLINED),
)


@dataclass(frozen=True, slots=True)
class Verb:
    """One of the things that can be done with a kind of recipe."""

    help: str
    add_arguments: Callable[[CommandParser], None]
    run: Callable[..., None]
    codes: Sequence[int] = LOOKING


def add_listing(parser: CommandParser) -> None:
    """Let a list be of some backends, and of names with a prefix."""
    arguments.add_using(parser)
    parser.add_argument(
        "--prefix", type=arguments.prefix, default="", help="Only names that begin with this."
    )
    arguments.add_json(parser)


def add_name(parser: CommandParser) -> None:
    """Let a verb be about one name in one backend."""
    arguments.add_name(parser, help="Its name.")
    parser.add_argument(
        "--using", default=DEFAULT_ALIAS, metavar="ALIAS", help="The backend's alias in DISTLOCK."
    )


def add_shown(parser: CommandParser) -> None:
    """Let a verb show one name, perhaps in JSON."""
    add_name(parser)
    arguments.add_json(parser)


class RecipeCommand(Generic[T]):
    """``manage.py locks KIND``: its list, and what else can be done with a name of this kind."""

    EPILOG = epilog(*LOOKING)

    def __init__(
        self,
        kind: Kind,
        help: str,
        read: Callable[[str, str], T],
        heading: output.Row,
        row: Callable[[T], output.Row],
        verbs: Mapping[str, Verb],
        *,
        list_help: str = "List them.",
        entry: Callable[[T], Any] | None = None,
    ) -> None:
        """``read(alias, name)`` returns what the list shows of a name.

        ``heading`` and ``row`` are without backend and name. ``verbs`` are those beside ``list``.
        ``entry`` is what JSON has of a report.
        """
        self.HELP = help
        self._kind, self._read, self._heading, self._row = kind, read, heading, row
        self._entry = entry
        self._verbs = {"list": Verb(list_help, add_listing, self._list), **verbs}

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for name, verb in self._verbs.items():
            end = epilog(*verb.codes, not_held=NOT_THERE)
            subparser = parsers.add_parser(name, help=verb.help, description=verb.help, epilog=end)
            verb.add_arguments(subparser)
            arguments.add_common(subparser, parser)

    def run(self, command: BaseCommand, *, verb: str, **options: Any) -> None:
        self._verbs[verb].run(command, **options)

    def _list(
        self,
        command: BaseCommand,
        *,
        using: Collection[str] | None,
        prefix: str,
        json: bool,
        **others: object,
    ) -> None:
        backends = arguments.Backends(using)

        def listed(backend: BaseBackend) -> Iterable[tuple[str, str, T]]:
            for name in names_of(self._kind, backend.alias, prefix):
                yield backend.alias, name, self._read(backend.alias, name)

        found = backends.ask(listed)
        if json:
            entry = self._entry or _itself
            entries = [
                {"using": alias, "name": name, **as_fields(entry(report))}
                for alias, name, report in found
            ]
            write_json(command, {PLURALS[self._kind]: entries, "unavailable": backends.failures})
        else:
            rows = [
                (alias, *self._row(report), output.quoted(name)) for alias, name, report in found
            ]
            write_table(command, ("BACKEND", *self._heading, "NAME"), rows)
            if not rows and not backends.failures:
                command.stderr.write(f"No {self._kind}.")
        backends.finish()


def _itself(report: T) -> T:
    return report


def write_table(command: BaseCommand, heading: output.Row, rows: Iterable[output.Row]) -> None:
    """Write a table for people; nothing if it has no rows."""
    for line in output.table_lines(heading, rows):
        command.stdout.write(line)


def ask(using: str, question: Callable[[], T]) -> T:
    """Return what a recipe answers; end the command if it raises an error."""
    arguments.Backends([using])  # refuses an alias that there is not
    try:
        return question()
    except StaleToken as error:
        fail(NOT_HELD, output.escaped(str(error)))
    except (NotSupported, TypeError, ValueError) as error:
        fail(USAGE, output.escaped(str(error)))
    except LockError as error:
        fail(FAILED, f"{using!r} could not be asked: {output.escaped(str(error))}")


def write_json(command: BaseCommand, document: object) -> None:
    command.stdout.write(json.dumps(plain(document), indent=1))


def as_fields(report: object) -> dict[str, Any]:
    """Return a report as an object of JSON; one that is a value or a list becomes its ``value``."""
    found = plain(report)
    return found if isinstance(found, dict) else {"value": found}


def plain(value: object) -> Any:
    """Return a report for JSON: times become ISO 8601, owners tell host, process and thread."""
    if isinstance(value, Owner):
        return output.json_owner(value)
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def data(value: object) -> str:
    """Return data for a line of text: JSON, a dash for nothing."""
    if value is None or value == {}:
        return output.NOTHING
    return output.escaped(json.dumps(value, ensure_ascii=False))
