"""What ``manage.py locks`` can do, and what its commands about one kind of recipe share.

These are ``manage.py locks VERB …`` and ``manage.py locks KIND VERB …``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from django.core.management.base import BaseCommand, CommandParser

from distlock.backends.base import BaseBackend
from distlock.backends.reading import together
from distlock.commands import arguments, exit_codes, output
from distlock.commands.arguments import (
    ALIAS,
    JSON,
    SIGNATURE,
    USING,
    Argument,
    option,
    prefix_option,
)
from distlock.commands.exit_codes import DECLINED, DONE, FAILED, NOT_HELD, USAGE, epilog, fail
from distlock.commands.output import quoted
from distlock.recipes.recipe import names_of
from distlock.types.lease import Kind

R = TypeVar("R")
T = TypeVar("T")

#: what the list of a kind is called in JSON, where that is not its name with an s
PLURALS = {Kind.NAMES: "namespaces", Kind.PROGRESS: "progress"}
#: the exit codes of verbs that only look; and, of recipes, of those that change something or miss
#: it, and of those that ask before they do it
LOOKING = epilog(DONE, FAILED, USAGE)
_recipe_epilog = partial(epilog, meanings={NOT_HELD: "it is not there, or has changed"})
CHANGING = _recipe_epilog(DONE, FAILED, USAGE, NOT_HELD)
ASKING = _recipe_epilog(DONE, FAILED, USAGE, NOT_HELD, DECLINED)
FILLING = _recipe_epilog(DONE, FAILED, USAGE, NOT_HELD, exit_codes.BUSY)


@dataclass(frozen=True, slots=True)
class Verb:
    """One of the things that can be done: its help text, what it does, and with which arguments."""

    help: str
    run: Callable[..., None]
    arguments: Sequence[Argument] = ()
    epilog: str = LOOKING
    #: the arguments of each verb of a class, before and after its own
    before: ClassVar[Sequence[Argument]] = ()
    after: ClassVar[Sequence[Argument]] = ()

    def add_arguments(self, parser: CommandParser) -> None:
        for add in (*self.before, *self.arguments, *self.after):
            add(parser)


class NameVerb(Verb):
    """One about a name on one backend: run() gets a Target, and the other arguments."""

    before = (option("name NAME", "Its name.", type=arguments.name), ALIAS)


class SignedVerb(NameVerb):
    """One whose work goes to the audit log: run() gets as ``signed`` who does it, and why."""

    after = SIGNATURE


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """The name on one backend that a verb is about, and the command that prints what comes of it.

    It is printed as a name of a table is; its repr() is for errors.
    """

    command: BaseCommand
    using: str
    name: str

    def __str__(self) -> str:
        return f"{quoted(self.name)} on {self.using}"

    def __repr__(self) -> str:
        return f"{self.name!r} on {self.using!r}"

    def recipe(self, make: Callable[..., R], **options: Any) -> R:
        """Return the recipe of this name."""
        return make(self.name, using=self.using, **options)

    def ask(self, question: Callable[[], T]) -> T:
        """Return what a recipe answers; end the command if it raises an error."""
        return arguments.ask(self.using, question)

    def write(self, text: str) -> None:
        self.command.stdout.write(text)

    def write_json(self, fields: Mapping[str, object]) -> None:
        output.write_json(self.command, {"using": self.using, "name": self.name, **fields})

    def confirm(self, interactive: bool, question: str) -> None:
        exit_codes.confirm(self.command, interactive, question)

    def succeed(self, text: str) -> None:
        """Write that something was done."""
        self.write(self.command.style.SUCCESS(text))


@dataclass(frozen=True, slots=True)
class Show(Generic[T]):
    """A verb that shows a name, or with ``key`` only a list that belongs to it.

    ``parts`` are the entries of the report that have a row each; JSON has the list under ``key``.
    ``read`` returns another report than that of the list. Where there are no parts a table says
    ``nothing``, and ``nobody`` says it with an exit code of its own; where ``misses``, read() does.
    ``labels`` stand in place of the headings of the list.
    """

    help: str = "Show one."
    parts: Callable[[T], Iterable[Any]] = lambda report: ()
    heading: Sequence[str] = ()
    row: Callable[[Any], output.Row] = lambda part: ()
    _: KW_ONLY
    labels: Sequence[str] = ()
    key: str = ""
    read: Callable[[Target], T] | None = None
    nothing: str = ""
    nobody: str = ""
    misses: bool = False


@dataclass(frozen=True)
class RecipeCommand(Generic[T]):
    """``manage.py locks KIND``: its list, what is known of a name, and what can be done with it.

    ``read(alias, name)`` returns what is known of a name. ``heading`` and ``row`` are what the list
    shows of it, without backend and name. ``verbs`` are those beside ``list`` and ``show``.
    ``entries`` is what JSON calls a report that is a list.
    """

    kind: Kind
    help: str
    read: Callable[[str, str], T]
    heading: Sequence[str]
    row: Callable[[T], output.Row]
    verbs: Mapping[str, NameVerb | Show[Any]] = field(default_factory=dict)
    show: Show[T] | None = None
    list_help: str = "List them."
    entries: str = "entries"
    epilog: ClassVar[str] = LOOKING

    @property
    def _verbs(self) -> dict[str, Verb]:
        arguments = (USING, prefix_option("names that begin"), JSON)
        verbs = {"list": Verb(self.list_help, self._list, arguments)}
        shown = {"show": self.show} if self.show else {}
        for name, verb in {**shown, **self.verbs}.items():
            if isinstance(verb, Show):
                end = CHANGING if verb.misses or verb.nobody else LOOKING
                verb = NameVerb(verb.help, partial(self._show, verb), (JSON,), end)
            verbs[name] = verb
        return verbs

    def add_arguments(self, parser: CommandParser) -> None:
        add_verbs(parser, self._verbs, dest="verb", metavar="VERB")

    def run(self, command: BaseCommand, *, verb: str, **options: Any) -> None:
        chosen = self._verbs[verb]
        if not isinstance(chosen, NameVerb):
            chosen.run(command, **options)
            return
        at = Target(command, options.pop("using"), options.pop("name"))
        if isinstance(chosen, SignedVerb):
            options["signed"] = {key: options.pop(key) for key in ("reason", "who")}
        chosen.run(at, **options)

    def _list(
        self, command: BaseCommand, *, using: Collection[str] | None, prefix: str, **options: Any
    ) -> None:
        backends = arguments.Backends(using)

        def listed(backend: BaseBackend) -> Iterable[tuple[str, str, T]]:
            names = names_of(self.kind, backend.alias, prefix)
            for name, report in together(names, partial(self.read, backend.alias)):
                yield backend.alias, name, report

        found = backends.ask(listed)
        if options["json"]:
            plural = PLURALS.get(self.kind) or f"{self.kind.replace('-', '_')}s"
            entries = [
                {"using": alias, "name": name, **self._fields(report)}
                for alias, name, report in found
            ]
            output.write_json(command, {plural: entries, "unavailable": backends.failures})
        else:
            heading = ("NAME", *self.heading, "BACKEND")
            optional = ("BACKEND", *self.heading[:0:-1])
            rows = [(quoted(name), *self.row(report), alias) for alias, name, report in found]
            nothing = "" if backends.failures else f"No {self.kind}."
            output.write_table(command, heading, rows, optional=optional, nothing=nothing)
        backends.finish()

    def _show(self, show: Show[Any], at: Target, *, json: bool, **others: object) -> None:
        report = show.read(at) if show.read else at.ask(lambda: self.read(at.using, at.name))
        parts = list(show.parts(report))
        if json:
            at.write_json({show.key: parts} if show.key else self._fields(report))
        else:
            if not show.key:
                at.write(str(at))
                labels = show.labels or tuple(label.lower() for label in self.heading)
                output.write_fields(at.command, zip(labels, self.row(report), strict=True))
            output.write_table(at.command, show.heading, map(show.row, parts), nothing=show.nothing)
        if show.nobody and not parts:
            fail(NOT_HELD, f"{show.nobody} {at!r}")

    def _fields(self, report: T) -> dict[str, Any]:
        """Return what an object of JSON has of a report, besides backend and name."""
        said = output.plain(report)
        return said if isinstance(said, dict) else {self.entries: said}


def add_verbs(
    parser: CommandParser,
    verbs: Mapping[str, Verb | RecipeCommand[Any]],
    *,
    dest: str,
    metavar: str,
) -> None:
    """Give each verb a parser of its own, with Django's options and the verb's."""
    parsers = parser.add_subparsers(dest=dest, required=True, metavar=metavar)
    for name, verb in verbs.items():
        subparser = parsers.add_parser(
            name, help=verb.help, description=verb.help, epilog=verb.epilog
        )
        arguments.add_common(subparser, parser)
        verb.add_arguments(subparser)
