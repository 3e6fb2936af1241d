"""``manage.py locks show NAME``: all that the backends know of one lock.

Only backends that know something of it are shown. Where none does, names that are alike are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from distlock import audit
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
from distlock.commands.known_names import KnownName, alike, known_names, recipe_names
from distlock.types.lease import Holder, Kind, LockInfo, State, Waiting
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
    found = backends.ask(lambda backend: infos_of(backend, name, kind))
    known = [info for info in found if _is_known(info)]
    named = backends.ask(lambda backend: recipe_names(backend, name))
    namesakes = [each for each in named if each.name == name]
    similar = [] if known or namesakes else alike(name, backends.ask(known_names))
    if json:
        document = {
            "locks": [{**output.json_entry(info), "audit": _audit(info)} for info in found],
            "namesakes": [each._asdict() for each in namesakes],
            "similar": [each._asdict() for each in similar],
            "unavailable": backends.failures,
        }
        output.write_json(command, document)
    else:
        for info in known:
            kind_of = "" if info.kind is Kind.LOCK else f" ({info.kind.value})"
            command.stdout.write(f"{output.quoted(info.name)} on {info.using}{kind_of}")
            output.write_fields(command, _fields(info))
            for entry in _audit(info):
                when = output.moment(entry["at"])
                command.stdout.write(f"  {when}  {entry['who']}: {entry['text']}")
        missing = {info.using for info in found} - {info.using for info in known}
        _write_elsewhere(command, namesakes, sorted(missing) if known else [])
        if similar:
            command.stdout.write(f"Names that are alike: {', '.join(map(str, similar))}")
    backends.finish()
    if all(info.state is State.FREE for info in found):
        what = "held" if known else "held, and not known"
        fail(NOT_HELD, f"{kind or Kind.LOCK} {name!r} is not {what}")


def _is_known(info: LockInfo) -> bool:
    agreed = info.slots if info.kind is Kind.SEMAPHORE else None
    return bool(info.holders or info.waiters or agreed or info.token is not None or _audit(info))


def _write_elsewhere(
    command: BaseCommand, namesakes: Iterable[KnownName], missing: Collection[str]
) -> None:
    """Write where there is no such lock, and what else has its name."""
    if missing:
        command.stdout.write(f"No such lock on: {', '.join(missing)}")
    for other in namesakes:
        verb = "get" if other.kind is Kind.CONFIG else "show"
        line = output.command_line(f"{other.kind} {verb}", other.using, other.name)
        command.stdout.write(f"There is also {other}: {line}")


def _audit(info: LockInfo) -> list[dict[str, Any]]:
    return audit.entries(info.using, info.kind, info.name)


def _fields(info: LockInfo) -> Iterator[tuple[str, str]]:
    yield "state", info.state.value
    if info.kind is Kind.SEMAPHORE:
        taken = f"{info.taken} of {info.slots} are taken"
        yield "seats", taken if info.slots else "nobody has said yet how many there are"
    if info.state is State.FREE and info.token is not None:
        yield "last token", str(info.token)
    if (last := info.last) is not None:
        yield "last owner", output.owner(last.owner)
        if last.description:
            yield "description", output.escaped(last.description)
        if last.call_site:
            yield "acquired at", output.escaped(last.call_site)
        yield f"{last.ended} at", output.moment(last.until)
        yield "held since", output.moment(last.since)
    for number, holder in enumerate(info.holders, 1):
        owner = output.owner(holder.owner)
        if info.kind is Kind.LOCK:
            yield "owner", owner
            yield from _holder(info, holder)
        else:
            yield f"holder {number}", f"{owner}, {output.share(info, holder)}"
            for label, value in _holder(info, holder):
                yield f"  {label}", value
    yield from _waiters(info)


def _holder(info: LockInfo, holder: Holder) -> Iterator[tuple[str, str]]:
    if is_named(holder.owner):
        yield "owner's name", output.quoted(holder.owner.key.removeprefix(NAMED))
    if holder.description:
        yield "description", output.escaped(holder.description)
    if holder.call_site:
        yield "acquired at", output.escaped(holder.call_site)
    if holder.since is not None:
        yield "held since", f"{output.moment(holder.since)} ({output.duration(holder.held_for)})"
    if holder.until is not None:
        yield (
            "lease ends",
            f"{output.moment(holder.until)} (in {output.duration(holder.remaining)})",
        )
    if holder.lease is not None:
        yield "lease", _lease(holder)
    if holder.token is not None:
        yield "token", str(holder.token)
        yield "to break it", output.release_command(info.of(holder))


def _waiters(info: LockInfo) -> Iterator[tuple[str, str]]:
    if info.waiters is None:
        yield "waiters", "not known to this backend"
    else:
        yield "waiters", output.waiting(info) if info.waiting else "none"
        for place, waiter in enumerate(info.waiters, 1):
            waited = waiter.waited if isinstance(waiter, Waiting) else None
            since = "" if waited is None else f" (for {output.duration(waited)})"
            yield f"  {place}.", f"{output.owner(waiter)}{since}"
        for host, pid, number in info.behind:
            yield "  behind", f"{number} more in {output.quoted(f'{host}:{pid}')}"


def _lease(holder: Holder) -> str:
    if is_reserved(holder.owner):
        return f"its holder has left; the lock stays taken for {output.duration(holder.lease)}"
    if holder.renewed_at is None:
        return f"a session of {output.duration(holder.lease)}"
    if not holder.renews:
        return f"{output.duration(holder.lease)}, not renewed"
    renewed = output.moment(holder.renewed_at)
    return f"{output.duration(holder.lease)}, last renewed or taken {renewed}"
