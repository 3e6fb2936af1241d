"""Arguments that several of the commands take, and the backends that they name."""

from __future__ import annotations

import argparse
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from heapq import merge
from itertools import islice
from queue import Full
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandParser

from distlock import fan_out
from distlock.backends.base import BaseBackend
from distlock.commands import output
from distlock.commands.exit_codes import BUSY, FAILED, NOT_HELD, USAGE, fail
from distlock.commands.output import escaped, quiet_drivers
from distlock.concurrency.clock import clock
from distlock.concurrency.reentry import refuse_reentry
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.exceptions import BodyEnded, LockError, NotSupported, StaleToken
from distlock.fan_out import call_backends, one_line
from distlock.recipes.description import Missing
from distlock.types.lease import LOCK_KINDS, Kind
from distlock.types.values import checked_description, checked_name

T = TypeVar("T")
N = TypeVar("N", int, float)


#: Adds an argument to a parser.
Argument = Callable[[argparse._ActionsContainer], object]


def option(what: str, help: str, **options: Any) -> Argument:
    """Return an argument of a command; ``what`` is as in its usage: ``"--every SECONDS"``.

    ``options`` are those of argparse. Names for the same are separated by ``|``.
    """
    names, _, metavar = what.partition(" ")
    if metavar:
        options["metavar"] = metavar
    return lambda parser: parser.add_argument(*names.split("|"), help=help, **options)


def argument(checked: Callable[[str], T]) -> Callable[[str], T]:
    """Make the type of an argument of a function: argparse shows the message of its ValueError."""

    def convert(value: str) -> T:
        try:
            return checked(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


#: The valid names and descriptions of a lock.
name, description = argument(checked_name), argument(checked_description)


@argument
def kind(value: str) -> Kind:
    """Return the kind of lock that ``value`` names."""
    if value not in LOCK_KINDS:
        raise ValueError(f"must be one of {', '.join(LOCK_KINDS)}, not {value!r}")
    return Kind(value)


@argument
def prefix(value: str) -> str:
    """Return ``value`` if a lock's name may begin so."""
    try:
        checked_name(f"-{value}-")
    except ValueError as error:
        raise ValueError(f"a name cannot begin with {value!r}") from error
    return value


@argument
def json_value(text: str) -> Any:
    """Return what a text says in JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'must be JSON, with " around a text, not {text!r}: {error}') from error


def number(what: str, convert: Callable[[str], N], least: N, most: float) -> Callable[[str], N]:
    """Return the type of a number between these two; ``what`` says which numbers these are."""

    @argument
    def checked(value: str) -> N:
        with suppress(ValueError):
            if least <= (found := convert(value)) <= most:
                return found
        raise ValueError(f"must be {what}, not {value!r}")

    return checked


def _whole(value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise ValueError
    return int(value)


#: A length of time, and how long to wait: 0 is not at all. Python can wait no longer.
seconds = number("a number of seconds > 0", float, math.ulp(0.0), threading.TIMEOUT_MAX)
waiting_time = number("a number of seconds >= 0", float, 0.0, threading.TIMEOUT_MAX)
#: 0, 1, 2 and so on, as tokens are; and what a process can end with.
whole_number = number("a whole number", _whole, 0, math.inf)
exit_code = number("a whole number from 0 to 255", _whole, 0, 255)

USING = option(
    "--using ALIAS",
    "Ask only the backend of this alias. May be repeated; all backends by default.",
    action="append",
)
ALIAS = option("--using ALIAS", "The backend's alias in DISTLOCK.", default=DEFAULT_ALIAS)


def prefix_option(what: str) -> Argument:
    return option("--prefix", f"Only {what} with this.", type=prefix, default="")


NAME = option("name NAME", "The lock's name.", type=name)
KIND = option(
    "--kind KIND",
    "Only this kind of lock: lock, semaphore or rwlock. All kinds by default.",
    type=kind,
)
JSON = option("--json", "Print JSON instead of a table.", action="store_true")
YES = option(
    "--yes|--no-input|--noinput",
    "Do not ask; for scripts.",
    action="store_false",
    dest="interactive",
)
#: Why something is done, and by whom.
SIGNATURE = (
    option("--reason TEXT", "The reason, for the audit log.", default=""),
    option(
        "--as WHO",
        "The author, for the audit log; by default the system's user.",
        dest="who",
        default="",
    ),
)


def busy_code(default: int = BUSY) -> Argument:
    return option(
        "--busy-code CODE",
        "The exit code if someone else has the lock (%(default)s). With 0 there is no message"
        " below --verbosity 2.",
        type=exit_code,
        default=default,
    )


def add_common(subparser: CommandParser, parser: CommandParser) -> None:
    """Let Django's own options, which ``parser`` has, stand behind the subcommand, too."""
    for action in parser._actions:
        if action.option_strings and action.dest not in ("help", "version"):
            twin = copy(action)
            twin.default = twin.help = argparse.SUPPRESS
            subparser._add_action(twin)


class Backends:
    """The backends of some aliases, or of all. One that fails does not keep the others back."""

    def __init__(self, using: Iterable[str] | None, *, again: bool = False) -> None:
        """``again``: those that were silent a moment ago are waited for much shorter."""
        self._again = again
        quiet_drivers()
        try:
            known = list(locks)
        except ImproperlyConfigured as error:
            fail(FAILED, escaped(str(error)))
        self.aliases = list(dict.fromkeys(using or known))
        for alias in self.aliases:
            if alias not in known:
                aliases = ", ".join(map(repr, known))
                fail(USAGE, f"ALIAS: DISTLOCK has no alias {alias!r}; the aliases are: {aliases}")
        #: why backends could not be asked, by alias
        self.failures: dict[str, str] = {}

    def ask(self, question: Callable[[BaseBackend], Iterable[T]]) -> list[T]:
        """Return what the backends answer; note a failure instead of raising it.

        All are asked at once, each on another thread. One from which nothing is heard for
        ``fan_out.TIMEOUT`` seconds fails.
        """
        return [part for answer in self._ask(self.aliases, question).values() for part in answer]

    def _ask(
        self, aliases: Iterable[str], question: Callable[[BaseBackend], Iterable[T]]
    ) -> dict[str, list[T]]:
        """See ask(); return the answers by alias."""
        refuse_reentry()
        heard: dict[str, float] = {}

        def collect(backend: BaseBackend, deadline: float) -> list[T]:
            found = []
            for part in question(backend):
                found.append(part)
                heard[backend.alias] = clock()
            return found

        aliases = [alias for alias in aliases if alias not in self.failures]
        answers = call_backends(aliases, collect, wait_for_silent=not self._again, heard=heard)
        for alias, answer in answers.items():
            if answer.problem:
                silent = f"no answer within {fan_out.TIMEOUT:g} seconds"
                self.failures[alias] = silent if answer.silent else answer.problem
        return {alias: answer.value or [] for alias, answer in answers.items()}

    def stream(
        self, question: Callable[[BaseBackend], Iterable[T]], key: Callable[[T], Any]
    ) -> Iterator[T]:
        """Return what the backends answer, each sorted by ``key``, merged; see ask().

        The next answers are asked for when those before them have been used. So the first ones can
        be printed at once, and there may be more of them than fit into the memory. One that fails
        has perhaps answered some.
        """
        begun: dict[str, Iterator[T]] = {}

        def some(backend: BaseBackend) -> Iterator[T]:
            if backend.alias not in begun:
                begun[backend.alias] = iter(question(backend))
            return islice(begun[backend.alias], output.AT_ONCE)

        first = self._ask(self.aliases, some)

        def answers(alias: str) -> Iterator[T]:
            part = first.pop(alias)
            while part:
                yield from part
                full = len(part) == output.AT_ONCE
                part = self._ask([alias], some).get(alias, []) if full else []

        return merge(*map(answers, list(first)), key=key)

    def work(self, question: Callable[[BaseBackend], Iterable[T]]) -> Iterator[T]:
        """Yield what the backends answer, one after the other, for as long as each one takes."""
        refuse_reentry()
        for alias in self.aliases:
            try:
                yield from question(locks[alias])
            except BodyEnded:  # the loss of a lock around this command
                raise
            except (LockError, ImproperlyConfigured) as error:
                self.failures[alias] = one_line(error)

    def finish(self) -> None:
        """End with an error if a backend could not be asked."""
        if self.failures:
            fail(FAILED, "; ".join(self.report()))

    def report(self) -> list[str]:
        """Return a sentence for each backend that could not be asked."""
        return [f"{alias!r} could not be asked: {why}" for alias, why in self.failures.items()]


def ask(using: str, question: Callable[[], T]) -> T:
    """Return what a recipe answers; end the command if it raises an error."""
    Backends([using])  # refuses an alias that there is not
    try:
        return question()
    except BodyEnded:  # the loss of a lock around this command
        raise
    except (StaleToken, Missing) as error:
        fail(NOT_HELD, escaped(str(error)))
    except Full as error:
        fail(BUSY, escaped(str(error)))
    except (NotSupported, TypeError, ValueError) as error:
        fail(USAGE, escaped(str(error)))
    except (LockError, ImproperlyConfigured) as error:
        fail(FAILED, f"{using!r} could not be asked: {escaped(str(error))}")
