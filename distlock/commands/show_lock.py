"""``manage.py locks show NAME``: all that the backends know of one lock."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import output
from distlock.commands.arguments import (
    Backends,
    add_json,
    add_kind,
    add_name,
    add_using,
    infos_of,
)
from distlock.commands.exit_codes import DONE, FAILED, NOT_HELD, USAGE, epilog, fail
from distlock.types.lease import Kind, LockInfo, State, Waiting
from distlock.types.owners import NAMED, is_named, is_reserved

HELP = "Show who holds a lock, since when, for how long still, and who waits for it."
EPILOG = epilog(DONE, FAILED, USAGE, NOT_HELD)


def add_arguments(parser: CommandParser) -> None:
    add_name(parser)
    add_using(parser)
    add_kind(parser)
    add_json(parser)


def run(
    command: BaseCommand,
    *,
    name: str,
    using: Collection[str] | None,
    kind: Kind | None,
    json: bool,
    **others: object,
) -> None:
    backends = Backends(using)
    found = list(backends.ask(lambda backend: infos_of(backend, name, kind)))
    if json:
        output.write_json(found, backends.failures, command.stdout.write)
    else:
        for info in found:
            kind_of = "" if info.kind is Kind.LOCK else f" ({info.kind.value})"
            command.stdout.write(f"{output.quoted(info.name)} on {info.using}{kind_of}")
            fields = _fields(info) if info.kind is Kind.LOCK else _shared_fields(info)
            output.write_fields(fields, command.stdout.write)
    backends.finish()
    if all(info.state is State.FREE for info in found):
        fail(NOT_HELD, f"{kind or Kind.LOCK} {name!r} is not held")


def _fields(info: LockInfo) -> Iterator[tuple[str, str]]:
    yield "state", info.state.value
    if info.token is not None:
        yield ("last token" if info.state is State.FREE else "token"), str(info.token)
    if info.description:
        yield "description", output.escaped(info.description)
    if info.owner is not None:
        yield "owner", output.owner(info.owner)
        if is_named(info.owner):
            yield "owner's name", output.quoted(info.owner.key.removeprefix(NAMED))
    if info.since is not None:
        yield "held since", f"{output.moment(info.since)} ({output.duration(info.held_for)})"
    if info.until is not None:
        yield "lease ends", f"{output.moment(info.until)} (in {output.duration(info.remaining)})"
    if info.lease is not None:
        yield "lease", _lease(info)
    yield from _waiters(info)
    if info.state is not State.FREE and info.token is not None:
        yield "to break it", output.release_command(info)


def _shared_fields(info: LockInfo) -> Iterator[tuple[str, str]]:
    yield "state", info.state.value
    if info.kind is Kind.SEMAPHORE:
        taken = f"{info.taken} of {info.slots} are taken"
        yield "seats", taken if info.slots else "nobody has said yet how many there are"
    if info.state is State.FREE and info.token is not None:
        yield "last token", str(info.token)
    for number, holder in enumerate(info.holders, 1):
        yield f"holder {number}", f"{output.owner(holder.owner)}, {output.share(info, holder)}"
        yield "  token", str(holder.token)
        if holder.description:
            yield "  description", output.escaped(holder.description)
        yield "  held since", output.moment(holder.since)
        if holder.until is not None:
            left = output.duration(holder.remaining)
            yield "  lease ends", f"{output.moment(holder.until)} (in {left}), unless renewed"
        yield "  to break it", output.release_command(info, holder.token)
    yield from _waiters(info)


def _waiters(info: LockInfo) -> Iterator[tuple[str, str]]:
    if info.waiters is None:
        yield "waiters", "not known to this backend"
    else:
        # Who waits in the holder's own process, behind the holder, is known only there.
        nobody = "none in other processes" if info.kind is Kind.LOCK else "none"
        yield "waiters", str(len(info.waiters)) if info.waiters else nobody
        for place, waiter in enumerate(info.waiters, 1):
            waited = waiter.waited if isinstance(waiter, Waiting) else None
            since = "" if waited is None else f" (for {output.duration(waited)})"
            yield f"  {place}.", f"{output.owner(waiter)}{since}"


def _lease(info: LockInfo) -> str:
    if info.owner is not None and is_reserved(info.owner):
        return f"its holder has left; the lock stays taken for {output.duration(info.lease)}"
    if info.renewed_at is None:
        return f"a session of {output.duration(info.lease)}"
    if not info.renews:
        return f"{output.duration(info.lease)}, not renewed"
    return f"{output.duration(info.lease)}, last renewed or taken {output.moment(info.renewed_at)}"
