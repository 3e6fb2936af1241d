"""``manage.py locks queue``: what is in a queue, its dead letters, and putting things right."""

from __future__ import annotations

from functools import partial
from queue import Full
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import output
from distlock.commands.arguments import whole_number
from distlock.commands.confirm import add_yes, confirm
from distlock.commands.exit_codes import BUSY, NOT_HELD, fail
from distlock.commands.recipe_command import (
    ASKING,
    CHANGING,
    RecipeCommand,
    Show,
    SignedVerb,
    Verb,
    add_name,
    add_shown,
    ask,
)
from distlock.recipes.queue import Queue
from distlock.recipes.queue_items import DeliveryInfo, QueueInfo, QueueItem
from distlock.types.lease import Kind


def _row(info: QueueInfo) -> output.Row:
    return (
        str(info.ready),
        str(info.delivered),
        str(info.delayed),
        str(info.dead),
        str(info.maxsize or output.NOTHING),
        output.age(info.oldest),
    )


def _delivery(one: DeliveryInfo) -> output.Row:
    return (
        str(one.id),
        "delayed" if one.delayed else "delivered",
        output.owner(None if one.delayed else one.owner),
        output.age(one.since),
        str(one.token),
    )


def _dead(command: BaseCommand, *, name: str, using: str, json: bool, **others: object) -> None:
    letters = _letters(using, Queue(name, using=using))
    if json:
        output.write_json(command, {"using": using, "name": name, "dead": letters})
        return
    heading = ("ITEM", "PUT", "DELIVERIES", "REASON", "BODY")
    output.write_table(command, heading, map(_letter, letters))
    if not letters:
        command.stderr.write("No dead letters.")


def _letters(using: str, queue: Queue) -> tuple[QueueItem, ...]:
    """Return all dead letters; dead() returns the first ones only."""
    return ask(using, partial(queue.dead, max(ask(using, queue.info).dead, 1)))


def _letter(letter: QueueItem) -> output.Row:
    return (
        str(letter.id),
        output.moment(letter.at),
        str(letter.attempts),
        output.quoted(letter.reason) or output.NOTHING,
        output.data(letter.body),
    )


def _add_retried(parser: CommandParser) -> None:
    add_name(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--item",
        type=whole_number,
        help="The dead letter of this number, as `queue dead` prints it.",
    )
    what.add_argument("--all", action="store_true", help="All dead letters.")


def _retry(
    command: BaseCommand,
    *,
    name: str,
    using: str,
    item: int | None,
    all: bool,
    reason: str,
    who: str,
    **others: object,
) -> None:
    queue = Queue(name, using=using)
    letters = [one for one in _letters(using, queue) if all or one.id == item]
    if not letters:
        which = "no dead letters" if all else f"no dead letter {item}"
        fail(NOT_HELD, f"queue {name!r} on {using!r} has {which}")
    signature: dict[str, Any] = {"reason": reason, "who": who}
    meant, count, before = {one.id for one in letters}, 0, -1
    try:
        while letters and before < count:  # of what was left the next attempt says why
            before = count
            if all:
                count += ask(using, partial(queue.retry_many, letters, **signature))
                letters = [one for one in _letters(using, queue) if one.id in meant]
            else:
                count += ask(using, partial(queue.retry, letters.pop(), False, **signature))
    except Full:
        fail(BUSY, f"queue {name!r} on {using!r} is full; {count} were put back")
    command.stdout.write(f"{count} put back, at the end of the queue.")


def _add_released(parser: CommandParser) -> None:
    add_name(parser)
    for option, meaning in {
        "--item": "The item's number",
        "--token": "Its delivery's token",
    }.items():
        parser.add_argument(
            option, type=whole_number, required=True, help=f"{meaning}, as `queue show` prints it."
        )
    add_yes(parser)


def _release(
    command: BaseCommand,
    *,
    name: str,
    using: str,
    item: int,
    token: int,
    interactive: bool,
    reason: str,
    who: str,
    **others: object,
) -> None:
    queue = Queue(name, using=using)
    deliveries = ask(using, queue.info).deliveries
    found = [one for one in deliveries if (one.id, one.token) == (item, token)]
    missing = f"queue {name!r} on {using!r} has no delivery of item {item} with token {token}"
    if not found:
        fail(NOT_HELD, missing)
    one = found[0]
    command.stdout.write(
        f"Item {one.id} is delivered again at once."
        f" {output.quoted(f'{one.owner.host}:{one.owner.pid}')}, which has had it for"
        f" {output.age(one.since)}, may still work on it, but cannot acknowledge it."
    )
    confirm(command, interactive, "Take it back?")
    if not ask(using, lambda: queue.force_release(item, token, reason=reason, who=who)):
        fail(NOT_HELD, f"{missing} any more; nothing was done")
    command.stdout.write(command.style.SUCCESS("Taken back."))


def _add_purged(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument(
        "--dead", action="store_true", help="The dead letters, in place of what is ready."
    )
    add_yes(parser)


def _purge(
    command: BaseCommand,
    *,
    name: str,
    using: str,
    dead: bool,
    interactive: bool,
    reason: str,
    who: str,
    **others: object,
) -> None:
    queue = Queue(name, using=using)
    info = ask(using, queue.info)
    count, what = (info.dead, "dead letters") if dead else (info.ready, "items that are ready")
    command.stdout.write(f"{output.quoted(name)} on {using} has {count} {what}.")
    if not count:
        return
    confirm(command, interactive, "Remove them for ever?")
    removed = ask(using, lambda: queue.purge(dead=dead, reason=reason, who=who))
    command.stdout.write(command.style.SUCCESS(f"{removed} removed."))


def _add_size(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument(
        "maxsize",
        type=whole_number,
        metavar="N",
        help="How many items there may be; 0 for no bound.",
    )


def _resize(
    command: BaseCommand,
    *,
    name: str,
    using: str,
    maxsize: int,
    reason: str,
    who: str,
    **others: object,
) -> None:
    ask(using, lambda: Queue(name, using=using).resize(maxsize, reason=reason, who=who))
    bound = f"{maxsize} items at the most" if maxsize else "any number of items"
    command.stdout.write(f"{output.quoted(name)} on {using} takes {bound} now.")


VERBS = {
    "dead": Verb("List the dead letters.", add_shown, _dead),
    "retry": SignedVerb(
        "Put dead letters back into the queue.", _add_retried, _retry, (*CHANGING, BUSY)
    ),
    "release": SignedVerb(
        "Take an item back from its consumer. Asks first.", _add_released, _release, ASKING
    ),
    "purge": SignedVerb(
        "Remove what is ready, or the dead letters. Asks first.", _add_purged, _purge, ASKING
    ),
    "resize": SignedVerb("Change for all how many items there may be.", _add_size, _resize),
}

COMMAND = RecipeCommand(
    Kind.QUEUE,
    "Queues: list, show, dead letters, retry, release, purge, resize.",
    lambda alias, name: Queue(name, using=alias).info(),
    ("READY", "DELIVERED", "DELAYED", "DEAD", "BOUND", "OLDEST"),
    _row,
    VERBS,
    show=Show(
        "Show what is in a queue, and who works on it.",
        lambda info: info.deliveries,
        ("ITEM", "STATE", "CONSUMER", "FOR", "TOKEN"),
        _delivery,
        labels=("ready", "being delivered", "delayed", "dead letters", "bound", "oldest waits for"),
    ),
    list_help="List the queues, and how full they are.",
)
