"""Queues: what waits, what is being delivered, dead letters, and putting things right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from queue import Full
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from distlock.admin.coordination.cells import Cell, Detail, Offer, Ref, Table, TableRow, Text
from distlock.admin.coordination.recipe_pages import Action, Done, RecipePages
from distlock.exceptions import LockError
from distlock.models import Queue as QueueModel
from distlock.recipes.queue import Queue
from distlock.recipes.queue_items import DeliveryInfo, QueueInfo, QueueItem
from distlock.types.lease import Kind

#: Dead letters, and deliveries, that a page shows.
_MOST_SHOWN = 100
#: The target of a purge: dead letters, or what is ready.
_DEAD, _READY = "dead", "ready"


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a queue, and its dead letters for its own page."""

    info: QueueInfo
    letters: Sequence[QueueItem] = ()


def _letter(contents: Contents, ref: Ref) -> QueueItem | None:
    return next((one for one in contents.letters if one.id == ref.token), None)


def _retry_facts(contents: Contents, ref: Ref) -> Sequence[tuple[Text, Cell]] | None:
    letter = _letter(contents, ref)
    if letter is None:
        return None
    return [
        (_("Item"), Cell(letter.id, "number")),
        (_("Body"), Cell(letter.body, "data")),
        (_("Put"), Cell(letter.at, "moment")),
        (_("Deliveries"), Cell(letter.attempts, "number")),
        (_("Put back because"), Cell(letter.reason)),
    ]


def _retry(ref: Ref, values: dict[str, Any]) -> Done | None:
    queue = Queue(ref.name, using=ref.alias)
    letter = next((one for one in queue.dead() if one.id == ref.token), None)
    try:
        if letter is None or not queue.retry(letter, blocking=False):
            return None
    except Full as error:
        raise LockError(str(error)) from error
    return Done(gettext_lazy("Put the dead letter %(token)d back. Reason: %(reason)s"))


RETRY: Action[Contents] = Action(
    name="retry",
    permission="distlock.retry_dead_letter",
    title=gettext_lazy("Put a dead letter back"),
    button=gettext_lazy("Put it back"),
    consequences=lambda contents, ref: [
        _("It comes to the end of the queue, as a new item, and its deliveries count from one."),
        _("What was done with it before may be done once more."),
    ],
    facts=_retry_facts,
    perform=_retry,
    done=gettext_lazy("The dead letter is in the queue again:"),
    danger=False,
)


def _delivery(contents: Contents, ref: Ref) -> DeliveryInfo | None:
    # Items that were taken in one change have one token.
    wanted = ref.target, ref.token
    found = (one for one in contents.info.deliveries if (str(one.id), one.token) == wanted)
    return next(found, None)


def _release_facts(contents: Contents, ref: Ref) -> Sequence[tuple[Text, Cell]] | None:
    delivery = _delivery(contents, ref)
    if delivery is None:
        return None
    return [
        (_("Item"), Cell(delivery.id, "number")),
        (_("Consumer"), Cell(None if delivery.delayed else delivery.owner, "owner")),
        (_("Since"), Cell(delivery.since, "moment")),
        (_("Token"), Cell(delivery.token, "number")),
    ]


def _release(ref: Ref, values: dict[str, Any]) -> Done | None:
    if not Queue(ref.name, using=ref.alias).force_release(int(ref.target), ref.token):
        return None
    log = gettext_lazy("Took back the item %(target)s, token %(token)d. Reason: %(reason)s")
    return Done(log)


RELEASE: Action[Contents] = Action(
    name="release",
    permission="distlock.release_delivery",
    title=gettext_lazy("Take an item back"),
    button=gettext_lazy("Take it back"),
    consequences=lambda contents, ref: [
        _("The item is ready at once, and is delivered again."),
        _("Its consumer may still be working on it, but cannot acknowledge it any more."),
    ],
    facts=_release_facts,
    perform=_release,
    done=gettext_lazy("The item was taken back:"),
)


def _purge_facts(contents: Contents, ref: Ref) -> Sequence[tuple[Text, Cell]] | None:
    dead = ref.target == _DEAD
    count = contents.info.dead if dead else contents.info.ready
    if not count:
        return None
    label = _("Dead letters") if dead else _("Ready")
    return [(label, Cell(count, "number"))]


def _purge(ref: Ref, values: dict[str, Any]) -> Done | None:
    count = Queue(ref.name, using=ref.alias).purge(dead=ref.target == _DEAD)
    if not count:
        return None
    log = gettext_lazy("Removed %(count)d items (%(target)s). Reason: %(reason)s")
    return Done(log, {"count": count})


PURGE: Action[Contents] = Action(
    name="purge",
    permission="distlock.purge_queue",
    title=gettext_lazy("Purge"),
    button=gettext_lazy("Remove them all"),
    consequences=lambda contents, ref: [
        _("They are gone for ever, and nobody gets them."),
        _("What comes while this goes on may be removed, too.")
        if ref.target == _DEAD
        else _("What is being delivered, or comes later, stays."),
    ],
    facts=_purge_facts,
    perform=_purge,
    done=gettext_lazy("Purged:"),
)


class QueuePages(RecipePages[Contents]):
    """How full it is, what is being delivered, and what was put aside."""

    kind = Kind.QUEUE
    model = QueueModel
    columns = (
        gettext_lazy("Ready"),
        gettext_lazy("Being delivered"),
        gettext_lazy("Delayed"),
        gettext_lazy("Dead letters"),
        gettext_lazy("Bound"),
        gettext_lazy("Oldest waits for"),
    )
    empty = gettext_lazy("Queues are listed here once something was put into one.")
    actions = (RETRY, RELEASE, PURGE)

    def read(self, alias: str, name: str, *, whole: bool) -> Contents:
        """Return what is in it; for its own page with the dead letters."""
        queue = Queue(name, using=alias)
        info = queue.info()
        return Contents(info, queue.dead() if whole and info.dead else ())

    def row(self, report: Contents) -> TableRow:
        """Return how many of each there are."""
        info = report.info
        return TableRow(
            [
                _depth(info),
                Cell(info.delivered, "number"),
                Cell(info.delayed, "number"),
                _dead(info),
                Cell(info.maxsize or None, "number"),
                Cell(info.oldest, "age"),
            ]
        )

    def detail(self, alias: str, name: str, report: Contents) -> Detail:
        """Return what waits, the deliveries, and the dead letters."""
        info = report.info
        offers = []
        if info.ready:
            ref = Ref(alias, name, 0, _READY)
            offers.append(Offer("purge", _("Remove what is ready…"), ref, danger=True))
        if info.dead:
            ref = Ref(alias, name, 0, _DEAD)
            offers.append(Offer("purge", _("Remove the dead letters…"), ref, danger=True))
        return Detail(
            facts=[
                (_("Ready"), _depth(info)),
                (_("Being delivered"), Cell(info.delivered, "number")),
                (_("Delayed"), Cell(info.delayed, "number")),
                (_("Dead letters"), _dead(info)),
                (_("Bound"), Cell(info.maxsize or None, "number")),
                (_("Oldest"), Cell(info.oldest, "moment")),
            ],
            tables=[self._deliveries(alias, name, info), self._letters(alias, name, report)],
            explanation=[
                _(
                    "First in, first out. What was taken is delivered again if its consumer fails,"
                    " or if its process dies and the lease ends."
                ),
                _("What was delivered too often, and never acknowledged, is put aside as dead."),
                _(
                    "The bound is shown once somebody has changed it for all; else each program has"
                    " said its own."
                ),
            ],
            offers=offers,
        )

    def _deliveries(self, alias: str, name: str, info: QueueInfo) -> Table:
        rows = []
        for one in info.deliveries[:_MOST_SHOWN]:
            ref = Ref(alias, name, one.token, str(one.id))
            state = (_("Delayed"), "free") if one.delayed else (_("Being delivered"), "held")
            rows.append(
                TableRow(
                    [
                        Cell(one.id, "number"),
                        Cell(state[0], "state", state[1]),
                        Cell(None if one.delayed else one.owner, "owner"),
                        Cell(one.since, "age"),
                        Cell(one.token, "number"),
                    ],
                    [Offer("release", _("Take back…"), ref, danger=True, named=str(one.id))],
                )
            )
        return Table(
            "deliveries",
            _("Deliveries"),
            (_("Item"), _("State"), _("Consumer"), _("For"), _("Token")),
            rows,
            empty=_("Nothing is being delivered."),
            hint=_shown(len(info.deliveries)),
        )

    def _letters(self, alias: str, name: str, report: Contents) -> Table:
        rows = []
        for letter in report.letters[:_MOST_SHOWN]:
            ref = Ref(alias, name, letter.id, str(letter.id))
            rows.append(
                TableRow(
                    [
                        Cell(letter.id, "number"),
                        Cell(letter.body, "data"),
                        Cell(letter.at, "moment"),
                        Cell(letter.attempts, "number"),
                        Cell(letter.reason),
                    ],
                    [Offer("retry", _("Put back…"), ref, named=str(letter.id))],
                )
            )
        return Table(
            "dead",
            _("Dead letters"),
            (_("Item"), _("Body"), _("Put"), _("Deliveries"), _("Put back because")),
            rows,
            empty=_("There are none."),
            hint=_shown(report.info.dead),
        )


def _depth(info: QueueInfo) -> Cell:
    """Return how many are ready, as a bar if there is a bound."""
    if not info.maxsize:
        return Cell(info.ready, "number")
    part = info.size / info.maxsize
    values = {"ready": info.ready, "size": info.size, "bound": info.maxsize}
    hint = _("%(ready)d ready, %(size)d of %(bound)d in all") % values
    return Cell(part, "bar", "held" if part < 1 else "expiring", hint=hint)


def _dead(info: QueueInfo) -> Cell:
    return Cell(info.dead, "state", "expired") if info.dead else Cell(0, "number")


def _shown(count: int) -> str:
    if count <= _MOST_SHOWN:
        return ""
    text = ngettext("the first of %(count)d", "the first of %(count)d", count)
    return text % {"count": count}
