"""``manage.py locks queue``: what is in a queue, its dead letters, and putting things right."""

from __future__ import annotations

import argparse
from functools import partial
from queue import Full
from typing import Any

from distlock.commands.arguments import YES, option, whole_number
from distlock.commands.exit_codes import BUSY, NOT_HELD, fail
from distlock.commands.output import Row, age, data
from distlock.commands.verbs import ASKING, FILLING, RecipeCommand, Show, SignedVerb, Target
from distlock.recipes.queue import Queue
from distlock.recipes.queue_items import DeliveryInfo, QueueInfo, QueueItem
from distlock.types.lease import Kind
from distlock.types.values import quoted


def _row(info: QueueInfo) -> Row:
    oldest = age(info.oldest)
    return info.ready, info.delivered, info.delayed, info.dead, info.maxsize or None, oldest


def _delivery(one: DeliveryInfo) -> Row:
    state, consumer = ("delayed", None) if one.delayed else ("delivered", one.owner)
    return one.id, state, consumer, age(one.since), one.token


def _letters(at: Target) -> tuple[QueueItem, ...]:
    """Return all dead letters; dead() returns the first ones only."""
    queue = at.recipe(Queue)
    return at.ask(partial(queue.dead, max(at.ask(queue.info).dead, 1)))


def _letter(letter: QueueItem) -> Row:
    return letter.id, letter.at, letter.attempts, quoted(letter.reason) or None, data(letter.body)


def _retry(
    at: Target, *, item: int | None, all: bool, signed: dict[str, Any], **others: object
) -> None:
    queue = at.recipe(Queue)
    letters = [one for one in _letters(at) if all or one.id == item]
    if not letters:
        which = "no dead letters" if all else f"no dead letter {item}"
        fail(NOT_HELD, f"queue {at!r} has {which}")
    meant, count, before = {one.id for one in letters}, 0, -1
    try:
        while letters and before < count:  # of what was left the next attempt says why
            before = count
            if all:
                count += at.ask(partial(queue.retry_many, letters, **signed))
                letters = [one for one in _letters(at) if one.id in meant]
            else:
                count += at.ask(partial(queue.retry, letters.pop(), False, **signed))
    except Full:
        fail(BUSY, f"queue {at!r} is full; {count} were put back")
    at.write(f"{count} put back, at the end of the queue.")


def _release(
    at: Target,
    *,
    item: int,
    token: int,
    interactive: bool,
    signed: dict[str, Any],
    **others: object,
) -> None:
    queue = at.recipe(Queue)
    deliveries = at.ask(queue.info).deliveries
    one = next((each for each in deliveries if (each.id, each.token) == (item, token)), None)
    missing = f"queue {at!r} has no delivery of item {item} with token {token}"
    if one is None:
        fail(NOT_HELD, missing)
    at.write(
        f"Item {one.id} is delivered again at once."
        f" {quoted(f'{one.owner.host}:{one.owner.pid}')}, which has had it for"
        f" {age(one.since)}, may still work on it, but cannot acknowledge it."
    )
    at.confirm(interactive, "Take it back?")
    if not at.ask(lambda: queue.force_release(item, token, **signed)):
        fail(NOT_HELD, f"{missing} any more; nothing was done")
    at.succeed("Taken back.")


def _purge(
    at: Target, *, dead: bool, interactive: bool, signed: dict[str, Any], **others: object
) -> None:
    queue = at.recipe(Queue)
    info = at.ask(queue.info)
    count, what = (info.dead, "dead letters") if dead else (info.ready, "items that are ready")
    at.write(f"{at} has {count} {what}.")
    if not count:
        return
    at.confirm(interactive, "Remove them for ever?")
    removed = at.ask(lambda: queue.purge(dead=dead, **signed))
    at.succeed(f"{removed} removed.")


def _resize(at: Target, *, maxsize: int, signed: dict[str, Any], **others: object) -> None:
    at.ask(lambda: at.recipe(Queue).resize(maxsize, **signed))
    bound = f"{maxsize} items at the most" if maxsize else "any number of items"
    at.write(f"{at} takes {bound} now.")


def _add_letters(parser: argparse._ActionsContainer) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    help = "The dead letter of this number, as `queue dead` prints it."
    what.add_argument("--item", type=whole_number, help=help)
    what.add_argument("--all", action="store_true", help="All dead letters.")


_DELIVERY = [
    option(name, f"{what}, as `queue show` prints it.", type=whole_number, required=True)
    for name, what in {"--item": "The item's number", "--token": "Its delivery's token"}.items()
]
_DEAD = option("--dead", "The dead letters, in place of what is ready.", action="store_true")
_SIZE = option("maxsize N", "How many items there may be; 0 for no bound.", type=whole_number)

_LABELS = ("ready", "being delivered", "delayed", "dead letters", "bound", "oldest waits for")

QUEUE = RecipeCommand(
    Kind.QUEUE,
    "Queues: list, show, dead letters, retry, release, purge, resize.",
    lambda alias, name: Queue(name, using=alias).info(),
    ("READY", "DELIVERED", "DELAYED", "DEAD", "BOUND", "OLDEST"),
    _row,
    {
        "show": Show(
            "Show what is in a queue, and who works on it.",
            lambda info: info.deliveries,
            ("ITEM", "STATE", "CONSUMER", "FOR", "TOKEN"),
            _delivery,
            labels=_LABELS,
        ),
        "dead": Show(
            "List the dead letters.",
            lambda letters: letters,
            ("ITEM", "PUT", "DELIVERIES", "REASON", "BODY"),
            _letter,
            key="dead",
            read=_letters,
            nothing="No dead letters.",
        ),
        "retry": SignedVerb(
            "Put dead letters back into the queue.", _retry, (_add_letters,), FILLING
        ),
        "release": SignedVerb(
            "Take an item back from its consumer. Asks first.", _release, (*_DELIVERY, YES), ASKING
        ),
        "purge": SignedVerb(
            "Remove what is ready, or the dead letters. Asks first.", _purge, (_DEAD, YES), ASKING
        ),
        "resize": SignedVerb("Change for all how many items there may be.", _resize, (_SIZE,)),
    },
    list_help="List the queues, and how full they are.",
)
