"""The actions on a queue: dead letters in bulk, a delivery taken back, a purge, its bound."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Full
from typing import Any

from django.utils.translation import gettext_lazy as _

from distlock.concurrency.clock import clock
from distlock.exceptions import LockError
from distlock.recipes.cells import Cell, Columns, Facts, Text, facts_of, some_of
from distlock.recipes.description import (
    Action,
    Effect,
    Listing,
    Operation,
    Option,
    Proposal,
    Ref,
    operation,
    signature,
)
from distlock.recipes.queue import Queue
from distlock.recipes.queue_items import DeliveryInfo, QueueInfo, QueueItem
from distlock.recipes.queue_operations import ItemInfo, ItemPage

#: Dead letters that are grouped, put back or discarded at once, and seconds to find them.
MOST_LETTERS, SEARCH_SECONDS = 1000, 1.0
#: What an action is done to: these, or the numbers of some dead letters with commas between.
#: SELECTED stands for the numbers that a form has.
ALL, READY, SELECTED, REASON, MATCHING = "dead", "ready", "selected", "reason:", "matching:"
#: Seconds for a change in bulk; it ends before, and says how far it has come.
_BULK_SECONDS, _BULK_TIMEOUT = 10.0, 20.0
_VARIES = re.compile(r"""'[^']*'|"[^"]*"|\d+""")


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a queue: its figures, and what one page, or an action, is about."""

    info: QueueInfo
    asked: Mapping[str, str] = field(default_factory=dict)
    page: ItemPage = ItemPage((), 0, None)
    #: the dead letters that are grouped, or that an action is done to
    letters: Sequence[QueueItem] = ()
    newest: int = 0
    found: ItemInfo | None = None


def reason_group(reason: str) -> str:
    """Return a reason without what differs from item to item: numbers, and quoted texts."""
    return _VARIES.sub("…", reason)


def letters_of(ref: Ref) -> list[QueueItem]:
    """Return the dead letters that are meant, as they are now; MOST_LETTERS of them.

    The token is the number of the newest one that was shown. So what is put back, and is dead once
    more, is left alone: it has a new number.
    """
    queue, target, newest = ref.recipe(Queue), ref.target, ref.token or 0
    if target == ALL or target.startswith((REASON, MATCHING)):
        text = target.removeprefix(MATCHING) if target.startswith(MATCHING) else ""
        found = queue.page("dead", MOST_LETTERS, matching=text, timeout=SEARCH_SECONDS).items
        group = target.removeprefix(REASON) if target.startswith(REASON) else None
        meant = [one for one in found if group in (None, reason_group(one.reason))]
    else:
        some = map(queue.find, filter(None, map(number_in, target.split(",")[:MOST_LETTERS])))
        meant = [one.item for one in some if one is not None and one.state == "dead"]
    return [one for one in meant if one.id <= newest]


def number_in(text: str) -> int:
    """Return the number of an item that a text of an address says; 0 if it says none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _facts(contents: Contents, ref: Ref) -> Facts | None:
    if ref.target == READY and contents.info.ready:
        return [(_("Ready"), Cell(contents.info.ready, "number"))]
    letters = contents.letters
    if not letters:
        return None
    more = _("or more") if len(letters) == MOST_LETTERS else ""
    numbers, reasons = [str(one.id) for one in letters], sorted({one.reason for one in letters})
    return [
        (_("Dead letters"), Cell(len(letters), "number", hint=more)),
        (_("Item"), Cell(some_of(numbers, 10))),
        (_("Put back because"), Cell(some_of(reasons, 10, "\n"), "block")),
        (_("Body"), Cell(letters[0].body, "data")),
    ]


def _in_bulk(change: Callable[..., int], ref: Ref, values: dict[str, Any]) -> Effect | None:
    """Change dead letters; say how many were changed, and why no more were.

    A page waits for this only so long; a terminal waits as long as it takes.
    """
    queue, until = ref.recipe(Queue), clock() + _BULK_SECONDS if values.get("timeout") else None
    done, before = 0, -1
    why: Text | Exception = ""
    try:
        while before < done and (letters := letters_of(ref)):
            before, rest = done, None if until is None else until - clock()
            if rest is not None and rest <= 0:
                why = _("The time was over. Do it again for the others.")
                break
            done += change(queue, letters, timeout=rest, **signature(values))
    except (Full, LockError) as error:
        if not done:
            raise
        why = error
    return Effect({"count": done}, f"{done}.", why) if done else None


RETRY: Action[Contents] = Action(
    name="retry",
    permission="distlock.retry_dead_letter",
    title=_("Put dead letters back"),
    button=_("Put back"),
    consequences=lambda contents, ref: [
        _("They come to the end of the queue, as new items, and their deliveries count from one."),
        _("Their work may be done a second time."),
        _("If the queue fills up, this ends, and says how many were put back."),
    ],
    facts=_facts,
    perform=partial(_in_bulk, Queue.retry_many),
    log=_("Put %(count)d dead letters back (%(target)s). Reason: %(reason)s"),
    done=_("Dead letters that were put back:"),
    danger=False,
    timeout=_BULK_TIMEOUT,
)


def _discard(ref: Ref, values: dict[str, Any]) -> Effect | None:
    if ref.target != READY:
        return _in_bulk(Queue.discard, ref, values)
    count = ref.recipe(Queue).purge(**signature(values))
    return Effect({"count": count}, f"{count}.") if count else None


DISCARD: Action[Contents] = Action(
    name="discard",
    permission="distlock.purge_queue",
    title=_("Discard items"),
    button=_("Discard"),
    consequences=lambda contents, ref: [
        _("They are gone forever, and nobody gets them."),
        _("Items that are being delivered, or come later, stay.")
        if ref.target == READY
        else _("Items that come while this goes on may be discarded, too."),
    ],
    facts=_facts,
    perform=_discard,
    log=_("Discarded %(count)d items (%(target)s). Reason: %(reason)s"),
    done=_("Items that were discarded:"),
    timeout=_BULK_TIMEOUT,
)


DELIVERY: Columns[DeliveryInfo] = (
    (_("Consumer"), lambda one: Cell(None if one.delayed else one.owner, "owner")),
    (_("For"), lambda one: Cell(one.since, "age")),
    (_("Token"), lambda one: Cell(one.token, "number")),
)


def _release_facts(contents: Contents, ref: Ref) -> Facts | None:
    for one in contents.info.deliveries:
        # Items that were taken in one change have one token.
        if (str(one.id), one.token) == (ref.target, ref.token):
            consumer, _age, token = facts_of(DELIVERY, one)
            since = (_("Since"), Cell(one.since, "moment"))
            return [(_("Item"), Cell(one.id, "number")), consumer, since, token]
    return None


def _release(ref: Ref, values: dict[str, Any]) -> bool:
    queue, item = ref.recipe(Queue), int(ref.target)
    return queue.force_release(item, ref.token or 0, **signature(values))


RELEASE: Action[Contents] = Action(
    name="release",
    permission="distlock.release_delivery",
    title=_("Take an item back"),
    button=_("Take it back"),
    consequences=lambda contents, ref: [
        _("The item is ready at once, and is delivered again."),
        _("Its consumer may still be working on it, but can no longer acknowledge it."),
    ],
    facts=_release_facts,
    perform=_release,
    log=_("Took back the item %(target)s, token %(token)d. Reason: %(reason)s"),
    done=_("The item was taken back:"),
)
ACTIONS = (RETRY, DISCARD, RELEASE)


# The verbs of the terminal


@operation(
    "Put dead letters back into the queue.",
    Option(
        "--item", "The dead letter of this number, as `queue dead` prints it.", "whole", either=True
    ),
    Option("--all", "All dead letters.", "flag", either=True),
    fills=True,
)
def _retrying(ref: Ref, options: dict[str, Any]) -> Proposal:
    number, newest = options["item"], newest_letter(ref)
    which = "no dead letters" if number is None else f"no dead letter {number}"
    ref = ref.of(newest, ALL if number is None else str(number))
    contents = Contents(ref.recipe(Queue).info(), letters=letters_of(ref))
    done = "%(count)d put back, at the end of the queue."
    return RETRY.proposal(contents, ref, done, f"queue {ref.exact} has {which}")


def newest_letter(ref: Ref) -> int:
    """Return the number of the newest dead letter; 0 if there is none."""
    last = ref.recipe(Queue).page("dead", 1, reverse=True).items
    return last[0].id if last else 0


@operation(
    "Take an item back from its consumer. Asks first.",
    Option("--item", "The item's number, as `queue show` prints it.", "whole", required=True),
    Option("--token", "Its delivery's token, as `queue show` prints it.", "whole", required=True),
    asks=True,
)
def _releasing(ref: Ref, options: dict[str, Any]) -> Proposal:
    item, token = options["item"], options["token"]
    missing = f"queue {ref.exact} has no delivery of item {item} with token {token}"
    contents, ref = Contents(ref.recipe(Queue).info()), ref.of(token, str(item))
    return RELEASE.proposal(contents, ref, "Taken back.", missing, "Take it back?")


def _purge(ref: Ref, values: dict[str, Any]) -> Effect:
    return Effect({"count": ref.recipe(Queue).purge(dead=values["dead"], **signature(values))})


@operation(
    "Remove the ready items, or the dead letters. Asks first.",
    Option("--dead", "The dead letters, instead of the ready items.", "flag"),
    asks=True,
)
def _purging(ref: Ref, options: dict[str, Any]) -> Proposal:
    info, dead = ref.recipe(Queue).info(), options["dead"]
    count, what = (info.dead, "dead letters") if dead else (info.ready, "items that are ready")
    said = [f"{ref.where} has {count} {what}."]
    perform, question = _purge if count else None, "Remove them forever?"
    return Proposal(ref, perform, "%(count)d removed.", question, explanation=said)


def _resize(ref: Ref, values: dict[str, Any]) -> bool:
    ref.recipe(Queue).resize(values["maxsize"], **signature(values))
    return True


@operation(
    "Change the bound of the queue for all.",
    Option("maxsize N", "The maximum of items; 0 for no bound.", "whole"),
)
def _resizing(ref: Ref, options: dict[str, Any]) -> Proposal:
    bound = "%(maxsize)d items at most" if options["maxsize"] else "any number of items"
    return Proposal(ref, _resize, f"%(where)s takes {bound} now.")


PUT_BACK: Columns[QueueItem] = (
    (_("Put back because"), lambda item: Cell(item.reason)),
    (_("Put"), lambda item: Cell(item.at, "age")),
    (_("Deliveries"), lambda item: Cell(item.attempts, "number")),
)
_LETTER: Columns[QueueItem] = (
    (_("Item"), lambda item: Cell(item.id, "number")),
    *PUT_BACK,
    (_("Body"), lambda item: Cell(item.body, "data")),
)


def _letters(ref: Ref) -> tuple[QueueItem, ...]:
    """Return all dead letters."""
    queue = ref.recipe(Queue)
    return queue.dead(max(queue.info().dead, 1))


VERBS: Mapping[str, Operation | Listing[Any]] = {
    "dead": Listing("List the dead letters.", _letters, _LETTER, nothing="No dead letters."),
    "retry": _retrying,
    "release": _releasing,
    "purge": _purging,
    "resize": _resizing,
}
