"""``manage.py locks show NAME``: all that the backends know of one lock."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import json_output, table, text
from distlock.commands.arguments import add_json, add_name, add_using
from distlock.commands.backends import Backends
from distlock.commands.exit_codes import DONE, FAILED, NOT_HELD, USAGE, epilog, leave
from distlock.commands.shell_commands import release_line
from distlock.types.lease import LockInfo, State, Waiting
from distlock.types.owners import NAMED, is_named, is_reserved

HELP = "Show who holds a lock, since when, for how long still, and who waits for it."
EPILOG = epilog(DONE, FAILED, USAGE, NOT_HELD)


def add_arguments(parser: CommandParser) -> None:
    add_name(parser)
    add_using(parser)
    add_json(parser)


def run(
    command: BaseCommand,
    *,
    name: str,
    using: Collection[str] | None,
    json: bool,
    **others: object,
) -> None:
    backends = Backends(using)
    found = []
    for alias in backends:
        with backends.noting(alias):
            found.append(backends[alias].inspect(name))
    if json:
        json_output.write(found, backends.failures, command.stdout.write)
    else:
        for info in found:
            command.stdout.write(f"{text.quoted(info.name)} on {info.using}")
            table.fields(_fields(info), command.stdout.write)
    backends.finish()
    if all(info.state is State.FREE for info in found):
        leave(NOT_HELD, f"lock {name!r} is not held")


def _fields(info: LockInfo) -> Iterator[tuple[str, str]]:
    yield "state", info.state.value
    if info.token is not None:
        yield ("last token" if info.state is State.FREE else "token"), str(info.token)
    if info.description:
        yield "description", text.escaped(info.description)
    if info.owner is not None:
        yield "owner", text.owner(info.owner)
        if is_named(info.owner):
            yield "owner's name", text.quoted(info.owner.key.removeprefix(NAMED))
    if info.since is not None:
        yield "held since", f"{text.moment(info.since)} ({text.duration(info.held_for)})"
    if info.until is not None:
        yield "lease ends", f"{text.moment(info.until)} (in {text.duration(info.remaining)})"
    if info.lease is not None:
        yield "lease", _lease(info)
    if info.waiters is None:
        yield "waiters", "not known to this backend"
    else:
        # Who waits in the holder's own process, behind the holder, is known only there.
        yield "waiters", str(len(info.waiters)) if info.waiters else "none in other processes"
        for place, waiter in enumerate(info.waiters, 1):
            waited = waiter.waited if isinstance(waiter, Waiting) else None
            since = "" if waited is None else f" (for {text.duration(waited)})"
            yield f"  {place}.", f"{text.owner(waiter)}{since}"
    if info.state is not State.FREE and info.token is not None:
        yield "to break it", release_line(info)


def _lease(info: LockInfo) -> str:
    if info.owner is not None and is_reserved(info.owner):
        return f"its holder has left; the lock stays taken for {text.duration(info.lease)}"
    if info.renewed_at is None:
        return f"a session of {text.duration(info.lease)}"
    if not info.renews:
        return f"{text.duration(info.lease)}, not renewed"
    return f"{text.duration(info.lease)}, last renewed or taken {text.moment(info.renewed_at)}"
