"""``manage.py locks release``, ``resize`` and ``sweep``: what changes locks for those who use them.

``release`` breaks one hold, and no other, or frees a Celery task's place.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand

from distlock import audit
from distlock.commands.arguments import (
    ALIAS,
    KIND,
    NAME,
    SIGNATURE,
    USING,
    YES,
    Backends,
    ask,
    name,
    number,
    option,
    seconds,
    whole_number,
)
from distlock.commands.exit_codes import (
    DECLINED,
    DONE,
    FAILED,
    NOT_HELD,
    USAGE,
    confirm,
    epilog,
    fail,
    sleep_until,
)
from distlock.commands.output import moment, owner
from distlock.commands.show_locks import infos_of
from distlock.commands.verbs import Verb
from distlock.concurrency.clock import clock
from distlock.locking.shared import Semaphore
from distlock.recipes import lock_of
from distlock.recipes.description import Ref, signature
from distlock.supervisor.processes import Interrupted, ended_by_signals
from distlock.types.lease import ALL_SEATS, Kind, LockInfo
from distlock.types.owners import QUEUEING, task_id_of
from distlock.types.values import quoted


def _release(
    command: BaseCommand, *, interactive: bool, task: str | None = None, **options: Any
) -> None:
    reason, who = options.pop("reason"), options.pop("who")
    hold = _found(task=task, **options)
    _explain(command, hold, of_task=task is not None)
    confirm(command, interactive, "Break it?")
    if not lock_of(hold).force_release(hold.token or 0, reason=reason, who=who):
        fail(NOT_HELD, f"{_not_held(hold.kind, hold.name, hold.token)} any more; nothing was done")
    command.stdout.write(command.style.SUCCESS("Broken."))
    if task is not None:
        command.stdout.write(
            "The task's message is still in the queue. Revoke it, unless it is lost, or should"
            " still run:"
            f" celery -A PROJECT control revoke {shlex.quote(task)}"
        )


def _found(
    *, name: str | None, token: int | None, task: str | None, kind: Kind | None, **options: Any
) -> LockInfo:
    """Return the one hold of a name under a token, or of a task; end the command otherwise."""
    backends = Backends(options["using"])
    if task is not None and name is None and token is None:
        queued = backends.work(lambda backend: backend.list(QUEUEING))
        found = [info for info in queued if task_id_of(info) == task]
        missing = f"no queueing lock is held by a task with the id {task!r}"
    elif task is None and name is not None and token is not None:
        seen = list(backends.work(lambda backend: infos_of(backend, name, kind)))
        holds = [info.of(holder) for info in seen for holder in info.holders]
        found = [hold for hold in holds if hold.token == token]
        others = "; ".join(
            f"on {hold.using} it is {hold.state.value} by {owner(hold.owner)} under token"
            f" {hold.token}"
            for hold in holds
        )
        what = kind or (seen[0].kind if seen else Kind.LOCK)
        missing = f"{_not_held(what, name, token)}; {others or 'it is free'}"
    else:
        fail(USAGE, "give either NAME and --token, or --task")
    if not found:
        backends.finish()  # it may be held where nobody could look
        fail(NOT_HELD, missing)
    if len(found) > 1:
        where = ", ".join(f"{hold.name!r} on {hold.using!r}" for hold in found)
        fail(USAGE, f"there are several: {where}; choose one with --using, or NAME and --token")
    return found[0]


def _not_held(kind: Kind, name: str, token: int | None) -> str:
    return f"{kind} {name!r} is not held under token {token}"


def _explain(command: BaseCommand, hold: LockInfo, *, of_task: bool) -> None:
    """Write what it means to break a hold."""
    command.stdout.write(
        f"{quoted(hold.name)} on {hold.using} is {hold.state.value} by {owner(hold.owner)} since"
        f" {moment(hold.since)}, token {hold.token}."
    )
    if of_task:
        text = "A call of the task can be queued again once it is free."
        command.stdout.write(f"{quoted(hold.description)}. {text}")
        return
    learns = (
        "does not learn of it, because it does not renew its lease"
        if hold.renews is False
        else "learns of it when it next renews"
    )
    command.stdout.write(
        "Its holder may still be working. Once the lock is broken others can acquire it; the holder"
        f" {learns}, and writes with an older fencing token."
    )


_NAME = option("name NAME", "The lock's name.", type=name, nargs="?")
_TOKEN = option(
    "--token",
    "The fencing token of the hold to break, as `locks show` and `locks list` print it.",
    type=whole_number,
)
_TASK = option(
    "--task ID", "In place of NAME and --token: free the queueing lock of this Celery task."
)
RELEASE = Verb(
    _release,
    (_NAME, USING, KIND, _TOKEN, _TASK, *SIGNATURE, YES),
    epilog(DONE, FAILED, USAGE, NOT_HELD, DECLINED),
)


def _resize(command: BaseCommand, *, name: str, value: int, using: str, **options: Any) -> None:
    ref = Ref(using, name)
    semaphore = ref.recipe(Semaphore)
    # A misspelt name would leave a record that no sweep forgets.
    if not options["create"] and not ask(using, semaphore.info).slots:
        unknown = f"No semaphore {ref.where} is in use, and its number of seats was never set."
        fail(FAILED, f"{unknown} Use --create if the name is right.")
    before = ask(using, lambda: semaphore.resize(value, **signature(options)))
    taken = ask(using, semaphore.info).taken
    seats = "1 seat" if before == 1 else f"{before} seats"
    had = "had no number yet" if before is None else f"had {seats}"
    command.stdout.write(f"{ref.where} {had}, and has {value} now; {taken} taken.")
    if taken > value:
        command.stdout.write("Seats are granted again when enough of these have been released.")


_COUNT = number("at least 1", int, 1, ALL_SEATS - 1)
_VALUE = option("value VALUE", "The new number of seats.", type=_COUNT)
_CREATE = option("--create", "Set the number of one that is not in use yet.", action="store_true")
RESIZE = Verb(
    _resize,
    (NAME, _VALUE, ALIAS, _CREATE, *SIGNATURE),
)


def _sweep(
    command: BaseCommand, *, using: Collection[str] | None, every: float | None, **others: object
) -> None:
    if every is None:
        _sweep_once(command, using).finish()
        return
    with suppress(Interrupted, KeyboardInterrupt), ended_by_signals():
        while True:
            for problem in _sweep_once(command, using).report():
                command.stderr.write(problem)
            sleep_until(clock() + every)


def _sweep_once(command: BaseCommand, using: Collection[str] | None) -> Backends:
    backends = Backends(using)
    for alias, swept in backends.work(lambda backend: [(backend.alias, audit.sweep(backend))]):
        command.stdout.write(f"{alias}: {swept.expired} expired, {swept.removed} removed")
    command.stdout.flush()
    return backends


_EVERY = option(
    "--every SECONDS",
    "Sweep repeatedly with this pause, until SIGTERM or SIGINT.",
    type=seconds,
)
SWEEP = Verb(
    _sweep,
    (USING, _EVERY),
)
