"""``manage.py locks release``: break one hold, and no other, or free a Celery task's place."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import output
from distlock.commands.arguments import (
    Backends,
    add_kind,
    add_name,
    add_using,
    infos_of,
    whole_number,
)
from distlock.commands.confirm import add_yes, confirm
from distlock.commands.exit_codes import DECLINED, DONE, FAILED, NOT_HELD, USAGE, epilog, fail
from distlock.core.queueing_owners import locks_of
from distlock.recipes import lock_of
from distlock.types.lease import Kind

HELP = (
    "Break the hold of a lock that has this token, and only that one;"
    " or free the queueing lock of a Celery task. Asks first."
)
EPILOG = epilog(DONE, FAILED, USAGE, NOT_HELD, DECLINED)


def add_arguments(parser: CommandParser) -> None:
    add_name(parser, required=False)
    add_using(parser)
    add_kind(parser)
    parser.add_argument(
        "--token",
        type=whole_number,
        help="The fencing token of the hold to break, as `locks show` and `locks list` print it.",
    )
    parser.add_argument(
        "--task",
        metavar="ID",
        help="In place of NAME and --token: free the queueing lock of this Celery task.",
    )
    add_yes(parser)


def run(
    command: BaseCommand,
    *,
    name: str | None,
    token: int | None,
    task: str | None = None,
    using: Collection[str] | None,
    kind: Kind | None,
    interactive: bool,
    **others: object,
) -> None:
    backends = Backends(using)
    if task is not None and name is None and token is None:
        found = list(backends.work(lambda backend: locks_of(backend, task)))
        missing = f"no queueing lock is held by a task with the id {task!r}"
    elif task is None and name is not None and token is not None:
        seen = list(backends.work(lambda backend: infos_of(backend, name, kind)))
        held = [(info, holder) for info in seen for holder in info.holders]
        found = [info for info, holder in held if holder.token == token]
        holds = "; ".join(
            f"on {info.using} it is {info.state.value} by {output.owner(holder.owner)}"
            f" under token {holder.token}"
            for info, holder in held
        )
        what = kind or (seen[0].kind if seen else Kind.LOCK)
        missing = f"{what} {name!r} is not held under token {token}; {holds or 'it is free'}"
    else:
        fail(USAGE, "say either NAME and --token, or --task")
    if not found:
        backends.finish()  # it may be held where nobody could look
        fail(NOT_HELD, missing)
    if len(found) > 1:
        where = ", ".join(f"{info.name!r} on {info.using!r}" for info in found)
        fail(USAGE, f"there are several: {where}; choose one with --using, or NAME and --token")
    info = found[0]
    holder = next(each for each in info.holders if each.token == (token or info.token))
    command.stdout.write(
        f"{output.quoted(info.name)} on {info.using} is {info.state.value}"
        f" by {output.owner(holder.owner)} since {output.moment(holder.since)}, token"
        f" {holder.token}."
    )
    learns = (
        "is not told, because it does not renew its lease"
        if info.renews is False and holder.owner == info.owner
        else "learns of it when it next renews"
    )
    command.stdout.write(
        f"{output.quoted(info.description)}."
        " A call of the task can be queued again once it is free."
        if task is not None
        else "Its holder may still be working. Once the lock is broken others can take it; the"
        f" holder {learns}, and writes with an older fencing token."
    )
    confirm(command, interactive, "Break it?")
    if not lock_of(info).force_release(holder.token or 0):
        fail(
            NOT_HELD,
            f"{info.kind} {info.name!r} is not held under token {holder.token} any more; nothing"
            " was done",
        )
    command.stdout.write(command.style.SUCCESS("Broken."))
    if task is not None:
        command.stdout.write(
            "The task's message is where it was. Revoke it, unless it is lost, or should run yet:"
            f" celery -A PROJECT control revoke {shlex.quote(task)}"
        )
