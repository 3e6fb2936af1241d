"""What the commands about one kind of recipe share: ``manage.py locks KIND VERB …``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
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
from distlock.exceptions import LockError, NotSupported, StaleToken
from distlock.recipes.recipe import names_of
from distlock.types.lease import Kind

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


class SignedVerb(Verb):
    """One whose work goes to the audit log: run() is told the ``reason``, and ``who`` does it."""


@dataclass(frozen=True, slots=True)
class Show(Generic[T]):
    """How ``show`` tells of one name, besides what the list says of it.

    ``parts`` are the entries of the report that have a row each. Where ``nobody`` says what it
    means that there are none, that has an exit code of its own. ``labels`` stand in place of the
    headings of the list.
    """

    help: str = "Show one."
    parts: Callable[[T], Iterable[Any]] = lambda report: ()
    heading: output.Row = ()
    row: Callable[[Any], output.Row] = lambda part: ()
    nobody: str = ""
    labels: output.Row = ()


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
    arguments.add_alias(parser)


def add_shown(parser: CommandParser) -> None:
    """Let a verb show one name, perhaps in JSON."""
    add_name(parser)
    arguments.add_json(parser)


class RecipeCommand(Generic[T]):
    """``manage.py locks KIND``: its list, what is known of a name, and what can be done with it."""

    EPILOG = epilog(*LOOKING)

    def __init__(
        self,
        kind: Kind,
        help: str,
        read: Callable[[str, str], T],
        heading: output.Row,
        row: Callable[[T], output.Row],
        verbs: Mapping[str, Verb] | None = None,
        *,
        show: Show[T] | None = None,
        list_help: str = "List them.",
        entries: str = "entries",
    ) -> None:
        """``read(alias, name)`` returns what is known of a name.

        ``heading`` and ``row`` are what the list shows of it, without backend and name. ``verbs``
        are those beside ``list`` and ``show``. ``entries`` is what JSON calls a report that is a
        list.
        """
        self.HELP = help
        self._kind, self._read, self._heading, self._row = kind, read, heading, row
        self._entries = entries
        self._verbs = {"list": Verb(list_help, add_listing, self._list)}
        if show is not None:
            self._show_as = show
            codes = CHANGING if show.nobody else LOOKING
            self._verbs["show"] = Verb(show.help, add_shown, self._show, codes)
        self._verbs.update(verbs or {})

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for name, verb in self._verbs.items():
            end = epilog(*verb.codes, not_held=NOT_THERE)
            subparser = parsers.add_parser(name, help=verb.help, description=verb.help, epilog=end)
            verb.add_arguments(subparser)
            if isinstance(verb, SignedVerb):
                arguments.add_signature(subparser)
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
            entries = [self._document(*each) for each in found]
            document = {PLURALS[self._kind]: entries, "unavailable": backends.failures}
            output.write_json(command, document)
        else:
            rows = [
                (output.quoted(name), *self._row(report), alias) for alias, name, report in found
            ]
            optional = ("BACKEND", *self._heading[:0:-1])
            heading = ("NAME", *self._heading, "BACKEND")
            output.write_table(command, heading, rows, optional=optional)
            if not rows and not backends.failures:
                command.stderr.write(f"No {self._kind}.")
        backends.finish()

    def _show(
        self, command: BaseCommand, *, name: str, using: str, json: bool, **others: object
    ) -> None:
        report = ask(using, lambda: self._read(using, name))
        show = self._show_as
        parts = list(show.parts(report))
        if json:
            output.write_json(command, self._document(using, name, report))
        else:
            command.stdout.write(f"{output.quoted(name)} on {using}")
            labels = show.labels or tuple(label.lower() for label in self._heading)
            output.write_fields(command, zip(labels, self._row(report), strict=True))
            if parts:
                output.write_table(command, show.heading, map(show.row, parts))
        if show.nobody and not parts:
            fail(NOT_HELD, f"{show.nobody} {name!r} on {using!r}")

    def _document(self, using: str, name: str, report: T) -> dict[str, Any]:
        """Return a report as an object of JSON."""
        said = output.plain(report)
        fields = said if isinstance(said, dict) else {self._entries: said}
        return {"using": using, "name": name, **fields}


def ask(using: str, question: Callable[[], T]) -> T:
    """Return what a recipe answers; end the command if it raises an error."""
    arguments.Backends([using])  # refuses an alias that there is not
    try:
        return question()
    except StaleToken as error:
        fail(NOT_HELD, output.escaped(str(error)))
    except (NotSupported, TypeError, ValueError) as error:
        fail(USAGE, output.escaped(str(error)))
    except (LockError, ImproperlyConfigured) as error:
        fail(FAILED, f"{using!r} could not be asked: {output.escaped(str(error))}")
