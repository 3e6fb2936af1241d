"""Arguments that several of the commands take, and the backends that they name."""

from __future__ import annotations

import argparse
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandParser

from distlock import fan_out
from distlock.backends.base import BaseBackend
from distlock.backends.seats import backend_name
from distlock.backends.shared import SHARED_KINDS, every_kind, part_of
from distlock.commands.exit_codes import BUSY, FAILED, USAGE, fail
from distlock.commands.output import escaped
from distlock.concurrency.clock import clock
from distlock.concurrency.reentry import refuse_reentry
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.core.manager import manager
from distlock.core.waiting_counts import Crowds
from distlock.exceptions import LockError
from distlock.fan_out import call_backends, one_line
from distlock.recipes.shared import AGREED, Slots, checked_slots
from distlock.types.arguments import checked_description, checked_name
from distlock.types.lease import LOCK_KINDS, Kind, LockInfo

T = TypeVar("T")


def add_using(parser: CommandParser) -> None:
    parser.add_argument(
        "--using",
        action="append",
        metavar="ALIAS",
        help="Ask only the backend of this alias. May be repeated; all backends by default.",
    )


def add_alias(parser: CommandParser) -> None:
    parser.add_argument(
        "--using", default=DEFAULT_ALIAS, metavar="ALIAS", help="The backend's alias in DISTLOCK."
    )


def add_name(
    parser: CommandParser, *, required: bool = True, help: str = "The lock's name."
) -> None:
    parser.add_argument(
        "name",
        type=name,
        nargs=None if required else "?",
        metavar="NAME",
        help=help,
    )


def add_kind(parser: CommandParser) -> None:
    parser.add_argument(
        "--kind",
        type=kind,
        metavar="KIND",
        help="Only this kind of lock: lock, semaphore or rwlock. All kinds by default.",
    )


def add_busy_code(parser: argparse._ActionsContainer, default: int = BUSY) -> None:
    parser.add_argument(
        "--busy-code",
        type=exit_code,
        default=default,
        metavar="CODE",
        help="The exit code if someone else has the lock (%(default)s). With 0 there is no message"
        " below --verbosity 2.",
    )


def add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")


def add_common(subparser: CommandParser, parser: CommandParser) -> None:
    """Let Django's own options, which ``parser`` has, stand behind the subcommand, too."""
    for action in parser._actions:
        if action.option_strings and action.dest not in ("help", "version"):
            twin = copy(action)
            twin.default = twin.help = argparse.SUPPRESS
            subparser._add_action(twin)


def _argument(checked: Callable[[str], str]) -> Callable[[str], str]:
    """Return a check as the type of an argument: argparse shows the message of its error."""

    def convert(value: str) -> str:
        try:
            return checked(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


#: What a lock may be called, and how it may be described.
name, description = _argument(checked_name), _argument(checked_description)


def kind(value: str) -> Kind:
    """Return the kind of lock that ``value`` names."""
    if value not in LOCK_KINDS:
        kinds = ", ".join(LOCK_KINDS)
        raise argparse.ArgumentTypeError(f"must be one of {kinds}, not {value!r}")
    return Kind(value)


def prefix(value: str) -> str:
    """Return ``value`` if a lock's name may begin so."""
    try:
        checked_name(f"-{value}-")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no name can begin with {value!r}") from error
    return value


def seconds(value: str) -> float:
    """Return ``value`` if it is a length of time."""
    if not (number := _number(value)) > 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds > 0, not {value!r}")
    return number


def waiting_time(value: str) -> float:
    """Return ``value`` if it says how long to wait; 0 is not at all."""
    if not (number := _number(value)) >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds >= 0, not {value!r}")
    return number


def exit_code(value: str) -> int:
    """Return ``value`` if a process can end with it."""
    if not (value.isascii() and value.isdecimal() and int(value) <= 255):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 255, not {value!r}")
    return int(value)


def whole_number(value: str) -> int:
    """Return ``value`` if it is 0, 1, 2 and so on, as tokens are."""
    if not (value.isascii() and value.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {value!r}")
    return int(value)


def _number(value: str) -> float:
    """Return a number of seconds that Python can wait for; NaN for anything else."""
    try:
        number = float(value)
    except ValueError:
        return math.nan
    return number if number <= threading.TIMEOUT_MAX else math.nan


def add_signature(parser: CommandParser) -> None:
    """Let a command say why something is done, and by whom."""
    parser.add_argument("--reason", default="", metavar="TEXT", help="Why; for the audit log.")
    who = "Who does it; the system's user by default."
    parser.add_argument("--as", dest="who", default="", metavar="WHO", help=who)


def infos_of(backend: BaseBackend, name: str, kind: Kind | None) -> list[LockInfo]:
    """Return what a backend knows of a name, as the name of a lock of one kind, or of all kinds.

    Of several kinds those are left out that nobody holds or waits for, but for the plain lock if
    nothing else is there.
    """
    if kind is not None:
        info = part_of(backend, kind).inspect(backend_name(kind, name))
        return [Crowds.read(backend, manager.queue).added_to(info)]
    lock, *others = every_kind(backend)
    shared = [
        info
        for part in others
        for kind in SHARED_KINDS
        if (info := part.inspect(backend_name(kind, name))).holders or info.waiters
    ]
    info = Crowds.read(lock, manager.queue).added_to(lock.inspect(name))
    return shared if shared and not info.holders else [info, *shared]


def slots(value: str) -> Slots:
    """Return a number of slots, or AGREED."""
    digits = value.removeprefix("-")
    number = int(value) if digits.isascii() and digits.isdecimal() else value
    try:
        checked_slots("it", number, at_least=None)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return AGREED if isinstance(number, str) else number


class Backends:
    """The backends of some aliases, or of all. One that fails does not keep the others back."""

    def __init__(self, using: Iterable[str] | None) -> None:
        quiet_drivers()
        try:
            known = list(locks)
        except ImproperlyConfigured as error:
            fail(FAILED, escaped(str(error)))
        self.aliases = list(dict.fromkeys(using or known))
        for alias in self.aliases:
            if alias not in known:
                fail(
                    USAGE,
                    f"ALIAS: DISTLOCK has no alias {alias!r}; the aliases are:"
                    f" {', '.join(map(repr, known))}",
                )
        #: why backends could not be asked, by alias
        self.failures: dict[str, str] = {}

    def ask(
        self, question: Callable[[BaseBackend], Iterable[T]], *, again: bool = False
    ) -> list[T]:
        """Return what the backends answer; note a failure instead of raising it.

        All are asked at once, each on another thread. One from which nothing is heard for
        ``fan_out.TIMEOUT`` seconds fails. ``again``: of one that was silent before, much sooner.
        """
        refuse_reentry()
        heard: dict[str, float] = {}

        def collect(backend: BaseBackend, deadline: float) -> list[T]:
            found = []
            for part in question(backend):
                found.append(part)
                heard[backend.alias] = clock()
            return found

        aliases = [alias for alias in self.aliases if alias not in self.failures]
        answers = call_backends(aliases, collect, wait_for_silent=not again, heard=heard)
        for alias, answer in answers.items():
            if answer.problem:
                silent = f"no answer within {fan_out.TIMEOUT:g} seconds"
                self.failures[alias] = silent if answer.silent else answer.problem
        return [part for answer in answers.values() for part in answer.value or ()]

    def work(self, question: Callable[[BaseBackend], Iterable[T]]) -> Iterator[T]:
        """Yield what the backends answer, one after the other, for as long as each one takes."""
        refuse_reentry()
        for alias in self.aliases:
            try:
                yield from question(locks[alias])
            except (LockError, ImproperlyConfigured) as error:
                self.failures[alias] = one_line(error)

    def finish(self) -> None:
        """End with an error if a backend could not be asked."""
        if self.failures:
            fail(FAILED, "; ".join(self.report()))

    def report(self) -> list[str]:
        """Return a sentence for each backend that could not be asked."""
        return [f"{alias!r} could not be asked: {why}" for alias, why in self.failures.items()]


def quiet_drivers() -> None:
    """Let kazoo's log lines go to stderr only if the project has configured logging for them.

    It logs every attempt to connect, and Python prints warnings of loggers that nobody has
    configured. The command itself says whether it could connect.
    """
    kazoo = logging.getLogger("distlock.zookeeper")
    if not kazoo.handlers:
        kazoo.addHandler(logging.NullHandler())
