"""``manage.py locks list`` and ``locks show NAME``: who holds which lock, and who waits for it.

The list has a row for each holder: a semaphore or a read/write lock may have several. Of one name
only backends that know something of it are shown; where none does, names that are alike are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from heapq import merge
from itertools import starmap, tee
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand

from distlock import audit
from distlock.backends.base import BaseBackend
from distlock.commands import output
from distlock.commands.arguments import JSON, KIND, NAME, USING, Backends, option, prefix_option
from distlock.commands.exit_codes import DONE, FAILED, NOT_HELD, USAGE, epilog, fail
from distlock.commands.output import duration, escaped, moment, owner
from distlock.commands.verbs import Verb
from distlock.exceptions import NotSupported
from distlock.recipes.recipe import names_of
from distlock.records.shared_backend import SHARED_KINDS, every_kind, part_of, shared_locks
from distlock.registry import BY_KIND
from distlock.runtime.local_queue import Crowds
from distlock.runtime.manager import manager
from distlock.types.lease import (
    Holder,
    Kind,
    LastHold,
    LockInfo,
    LockKey,
    State,
    Waiting,
)
from distlock.types.owners import NAMED, is_named, is_reserved
from distlock.types.query import DisplayStatus, status_of
from distlock.types.values import quoted

_FIRST = ("NAME", "STATE", "AGE", "LEFT", "WAITERS", "OWNER")
HEADING = (*_FIRST, "DESCRIPTION", "BACKEND", "KIND", "TOKEN")
#: The columns that are omitted first where the terminal is narrow.
OPTIONAL = ("TOKEN", "KIND", "BACKEND", "DESCRIPTION", "LEFT", "WAITERS")
STATES = (DisplayStatus.HELD.value, DisplayStatus.EXPIRING.value, DisplayStatus.EXPIRED.value)
COLOURS = {DisplayStatus.EXPIRING: output.WARNING, DisplayStatus.EXPIRED: output.ALARM}
ORDERS: dict[str, Callable[[LockInfo], Any]] = {
    "name": lambda info: info.name,
    "age": lambda info: info.since or datetime.max.replace(tzinfo=UTC),
    "left": lambda info: math.inf if info.remaining is None else info.remaining,
    "waiters": lambda info: -waiting(info),
}
#: Names that are proposed in place of one that is not known.
_PROPOSED = 5


def _list(
    command: BaseCommand, *, using: Collection[str] | None, prefix: str, json: bool, **options: Any
) -> None:
    states, kind = {*(options["state"] or STATES)}, options["kind"]

    def wanted(info: LockInfo) -> bool:
        return kind in (None, info.kind) and not states.isdisjoint((info.state, status_of(info)))

    def in_use(backend: BaseBackend) -> Iterator[LockInfo]:
        return filter(wanted, locks_in_use(backend, prefix))

    backends, order = Backends(using), options["sort"]
    found = (
        backends.stream(in_use, ORDERS[order])
        if order == "name"
        else iter(sorted(backends.ask(in_use), key=ORDERS[order]))
    )
    if json:
        rest = {"unavailable": backends.failures}
        output.write_json_list(command, "locks", map(output.json_entry, found), rest)
    else:
        rows, colours = rows_of(found)
        nothing = "" if backends.failures else "No locks."
        output.write_table(
            command, HEADING, rows, optional=OPTIONAL, colours=colours, nothing=nothing
        )
    backends.finish()


def locks_in_use(backend: BaseBackend, prefix: str = "") -> Iterator[LockInfo]:
    """Return, by name, the locks of all kinds that are held, or whose lease ended unreleased."""
    crowds: Crowds | None = None
    parts: list[Iterable[LockInfo]] = [backend.list(prefix)]
    with suppress(NotSupported):  # it keeps nothing but locks
        shared = shared_locks(backend)
        parts += [shared.list(prefix, kinds=[kind]) for kind in SHARED_KINDS]
    for info in merge(*parts, key=ORDERS["name"]):
        if info.state is not State.FREE:
            crowds = crowds or Crowds.read(backend, manager().queue)
            yield crowds.added_to(info)


def waiting(info: LockInfo) -> int:
    """Return how many wait for a lock; 0 where that is not known."""
    return info.waiting or 0


def rows_of(infos: Iterable[LockInfo]) -> tuple[Iterator[output.Row], Iterator[str]]:
    """Return a row for each of those who hold the locks, and the colours of these rows."""
    holds = ((info, holder) for info in infos for holder in info.holders)
    shown = ((info, holder, status_of(info.of(holder))) for info, holder in holds)
    of_rows, of_colours = tee(shown)
    return starmap(_row, of_rows), (COLOURS.get(state, "") for *_, state in of_colours)


def _row(info: LockInfo, holder: Holder, state: DisplayStatus) -> output.Row:
    age, left, waiters = duration(holder.held_for), duration(holder.remaining), output.waiting(info)
    first = (quoted(info.name), state.value, age, left, waiters, holder.owner)
    description = escaped(holder.description) or None
    return *first, description, info.using, output.kind(info), holder.token


def _show(
    command: BaseCommand, *, name: str, kind: Kind | None, json: bool, **options: Any
) -> None:
    backends = Backends(options["using"])
    found = backends.ask(lambda backend: infos_of(backend, name, kind))
    known = [info for info in found if _is_known(info)]
    named = backends.ask(lambda backend: _recipe_names(backend, name))
    namesakes = [each for each in named if each.name == name]
    similar = [] if known or namesakes else _alike(name, backends.ask(_known_names))
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
            _write_lock(command, info)
        missing = {info.using for info in found} - {info.using for info in known}
        if known and missing:
            command.stdout.write(f"No such lock on: {', '.join(sorted(missing))}")
        _write_others(command, namesakes, similar)
    backends.finish()
    if all(info.state is State.FREE for info in found):
        what = "held" if known else "held, and not known"
        fail(NOT_HELD, f"{kind or Kind.LOCK} {name!r} is not {what}")


def infos_of(backend: BaseBackend, name: str, kind: Kind | None) -> list[LockInfo]:
    """Return what a backend knows of a name, as the name of a lock of one kind, or of all kinds.

    Of several kinds those are left out that nobody holds or waits for, but for the plain lock if
    nothing else is there.
    """
    if kind is not None:
        key = LockKey(backend.alias, kind, name)
        info = part_of(backend, kind).inspect(key.backend_name)
        return [Crowds.read(backend, manager().queue).added_to(info)]
    lock, *others = every_kind(backend)
    shared = [
        info
        for part in others
        for kind in SHARED_KINDS
        if (info := part.inspect(LockKey(part.alias, kind, name).directory)).holders or info.waiters
    ]
    info = Crowds.read(lock, manager().queue).added_to(lock.inspect(name))
    return shared if shared and not info.holders else [info, *shared]


def _is_known(info: LockInfo) -> bool:
    agreed = info.slots if info.kind is Kind.SEMAPHORE else None
    return bool(info.holders or info.waiters or agreed or info.token is not None or _audit(info))


def _audit(info: LockInfo) -> list[dict[str, Any]]:
    return audit.entries(info.using, info.kind, info.name)


def _write_lock(command: BaseCommand, info: LockInfo) -> None:
    kind = "" if info.kind is Kind.LOCK else f" ({info.kind.value})"
    command.stdout.write(f"{quoted(info.name)} on {info.using}{kind}")
    output.write_fields(command, _fields(info))
    for entry in _audit(info):
        command.stdout.write(f"  {moment(entry['at'])}  {entry['who']}: {entry['text']}")


def _fields(info: LockInfo) -> Iterator[tuple[str, object]]:
    yield "state", info.state.value
    if info.kind is Kind.SEMAPHORE:
        taken = f"{info.taken} of {info.slots} are taken"
        yield "seats", taken if info.slots else "their number is not set yet"
    if info.state is State.FREE and info.token is not None:
        yield "last token", info.token
    if (last := info.last) is not None:
        yield "last owner", last.owner
        yield from _where(last)
        yield f"{last.ended} at", last.until
        yield "held since", last.since
    for number, holder in enumerate(info.holders, 1):
        if info.kind is Kind.LOCK:
            yield "owner", holder.owner
            yield from _holder(info, holder)
        else:
            yield f"holder {number}", f"{owner(holder.owner)}, {output.share(info, holder)}"
            for label, value in _holder(info, holder):
                yield f"  {label}", value
    yield from _waiters(info)


def _where(hold: Holder | LastHold) -> Iterator[tuple[str, object]]:
    texts = {"description": escaped(hold.description), "acquired at": escaped(hold.call_site)}
    yield from ((label, text) for label, text in texts.items() if text)


def _holder(info: LockInfo, holder: Holder) -> Iterator[tuple[str, object]]:
    if is_named(holder.owner):
        yield "owner's name", quoted(holder.owner.key.removeprefix(NAMED))
    yield from _where(holder)
    if holder.since is not None:
        yield "held since", f"{moment(holder.since)} ({duration(holder.held_for)})"
    if holder.until is not None:
        yield "lease ends", f"{moment(holder.until)} (in {duration(holder.remaining)})"
    if holder.lease is not None:
        yield "lease", _lease(holder)
    if holder.token is not None:
        yield "token", holder.token
        yield "to break it", output.release_command(info.of(holder))


def _lease(holder: Holder) -> str:
    length = duration(holder.lease)
    if is_reserved(holder.owner):
        return f"its holder has left; the lock stays taken for {length}"
    if holder.renewed_at is None:
        return f"a session of {length}"
    if not holder.renews:
        return f"{length}, not renewed"
    return f"{length}, last renewed or taken {moment(holder.renewed_at)}"


def _waiters(info: LockInfo) -> Iterator[tuple[str, object]]:
    if info.waiters is None:
        yield "waiters", "not known to this backend"
        return
    yield "waiters", output.waiting(info) if info.waiting else "none"
    for place, waiter in enumerate(info.waiters, 1):
        waited = waiter.waited if isinstance(waiter, Waiting) else None
        since = "" if waited is None else f" (for {duration(waited)})"
        yield f"  {place}.", f"{owner(waiter)}{since}"
    for host, pid, number in info.behind:
        yield "  behind", f"{number} more in {quoted(f'{host}:{pid}')}"


class KnownName(NamedTuple):
    """A name that is in use somewhere."""

    name: str
    kind: Kind
    using: str

    def __str__(self) -> str:
        return f"{quoted(self.name)} ({self.kind} on {self.using})"


def _write_others(
    command: BaseCommand, namesakes: Iterable[KnownName], similar: Sequence[KnownName]
) -> None:
    """Write what else has the name of a lock, or a name that is like it."""
    for other in namesakes:
        verb = f"{other.kind} {BY_KIND[other.kind].description.show}"
        line = output.command_line(verb, other.using, other.name)
        command.stdout.write(f"There is also {other}: {line}")
    if similar:
        command.stdout.write(f"Similar names: {', '.join(map(str, similar))}")


def _known_names(backend: BaseBackend) -> Iterator[KnownName]:
    """Return all names that are in use in a backend."""
    for info in locks_in_use(backend):
        yield KnownName(info.name, info.kind, backend.alias)
    yield from _recipe_names(backend)


def _recipe_names(backend: BaseBackend, beginning: str = "") -> Iterator[KnownName]:
    """Return the names of recipes that begin so."""
    for kind in BY_KIND:
        try:
            names = names_of(kind, backend.alias, beginning)
        except NotSupported:
            return  # it keeps nothing but locks
        yield from (KnownName(name, kind, backend.alias) for name in names)


def _alike(name: str, known: Iterable[KnownName]) -> list[KnownName]:
    """Return the names that someone who wrote ``name`` may have meant, the likeliest first."""
    wanted = name.casefold()
    by_name: dict[str, list[KnownName]] = {}
    for each in known:
        by_name.setdefault(each.name.casefold(), []).append(each)
    found = get_close_matches(wanted, by_name, _PROPOSED)
    found += (each for each in by_name if wanted in each and each not in found)
    return [known for each in found for known in by_name[each]][:_PROPOSED]


_STATE = option(
    "--state",
    "Only locks in this state. Expiring ones, with a missed renewal or without renewals, are"
    " held, too. May be repeated.",
    action="append",
    choices=STATES,
)
_SORT = option(
    "--sort",
    "Sort by name, the oldest first, the least time left first, or the most waiters first"
    " (%(default)s).",
    choices=tuple(ORDERS),
    default="name",
)
LIST = Verb(
    _list,
    (USING, prefix_option("locks whose names begin"), _STATE, _SORT, KIND, JSON),
)
SHOW = Verb(
    _show,
    (NAME, USING, KIND, JSON),
    epilog(DONE, FAILED, USAGE, NOT_HELD),
)
