"""What a queue looks like: items that wait, deliveries, dead letters, in pages; and one item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from distlock.recipes.cells import Cell, Columns, Text, facts_of, json_lines, state
from distlock.recipes.description import Description, Detail, Offer, Ref, Table
from distlock.recipes.queue import Queue
from distlock.recipes.queue_actions import (
    ACTIONS,
    ALL,
    DELIVERY,
    MATCHING,
    PUT_BACK,
    READY,
    REASON,
    SEARCH_SECONDS,
    SELECTED,
    VERBS,
    Contents,
    letters_of,
    newest_letter,
    number_in,
    reason_group,
)
from distlock.recipes.queue_items import DeliveryInfo, QueueInfo, QueueItem
from distlock.recipes.queue_operations import STATES

#: Items on a page, groups of dead letters, and characters of a search.
_PAGE_SIZE, _MOST_GROUPS, _MOST_SEARCHED = 25, 20, 200


_ASIDE = _("Items that were delivered too often, and never acknowledged, are dead.")
_AGAIN = _("It is delivered again if its consumer fails, or if its process dies.")
#: The label of each state of items, and what it means.
_STATES: dict[str, tuple[Cell, Text]] = {
    "ready": (state("ready", _("Ready")), _("It waits for a consumer.")),
    "delivered": (state("delivered", _("Being delivered"), "held"), _AGAIN),
    "delayed": (state("delayed", _("Delayed")), _("It was put back for later.")),
    "dead": (state("dead", _("Dead"), "expired"), _ASIDE),
}


def _depth(info: QueueInfo) -> Cell:
    """Return how many are ready, as a bar if there is a bound."""
    if not info.maxsize:
        return Cell(info.ready, "number")
    part = info.size / info.maxsize
    values = {"ready": info.ready, "size": info.size, "bound": info.maxsize}
    hint = _("%(ready)d ready, %(size)d of %(bound)d in all") % values
    return Cell(part, "bar", "held" if part < 1 else "expiring", hint=hint)


def _dead(info: QueueInfo) -> Cell:
    if not info.dead:
        return Cell(0, "number")
    return Cell(info.dead, "state", "expired", code=str(info.dead))


def _state_of(one: DeliveryInfo) -> Cell:
    return _STATES["delayed" if one.delayed else "delivered"][0]


_DELIVERED: Columns[DeliveryInfo] = (
    (_("Item"), lambda one: Cell(one.id, "number")),
    (_("State"), _state_of),
    *DELIVERY,
)
_GROUP: Columns[tuple[str, int]] = (
    (_("Put back because"), lambda group: Cell(group[0])),
    (_("Dead letters"), lambda group: Cell(group[1], "number")),
)


class QueueDescription(Description[QueueInfo]):
    """How full it is, what is being delivered, and what was put aside."""

    recipe = Queue
    list_help = "List the queues, and how full they are."
    show_help = "Show the items of a queue, and its consumers."
    empty = _("Queues are listed here once something was put into one.")
    columns: ClassVar[Columns[QueueInfo]] = (
        (_("Ready"), _depth),
        (_("Being delivered"), lambda info: Cell(info.delivered, "number")),
        (_("Delayed"), lambda info: Cell(info.delayed, "number")),
        (_("Dead letters"), _dead),
        (_("Bound"), lambda info: Cell(info.maxsize or None, "number")),
        (_("Oldest waits for"), lambda info: Cell(info.oldest, "age")),
    )
    actions = ACTIONS
    verbs = VERBS
    watched = True

    def problems(self, report: QueueInfo) -> Iterator[tuple[str, str]]:
        """Return how many dead letters there are, if any."""
        if report.dead:
            yield "dead letters", f"{report.dead} dead, {report.ready} ready"

    def detail(self, ref: Ref, report: QueueInfo) -> Detail:
        """Return the figures, and what is being delivered."""
        title, _total = _numbers(report)["delivered"]
        return Detail(self.row(report), [Table("delivered", title, _DELIVERED, report.deliveries)])

    def read_page(self, ref: Ref, asked: Mapping[str, str]) -> Contents:
        """Return one page of the items in one state, or one item; see _address()."""
        queue = ref.recipe(Queue)
        info = queue.info()
        if number := number_in(asked.get("item", "")):
            return Contents(info, asked, found=queue.find(number))
        state = asked.get("state", "")
        if state not in STATES:
            state = next((one for one, (_title, count) in _numbers(info).items() if count), READY)
        search = "".join(filter(str.isprintable, asked.get("q", "").strip()))[:_MOST_SEARCHED]
        newest = asked.get("order", "oldest" if state == "delivered" else "newest") == "newest"
        before, after = number_in(asked.get("before", "")), number_in(asked.get("after", ""))
        page = queue.page(
            state,
            _PAGE_SIZE,
            after=before or after or None,
            reverse=newest != bool(before),
            matching=search,
            timeout=SEARCH_SECONDS,
        )
        shown = {**asked, "state": state, "q": search, "order": "newest" if newest else "oldest"}
        token = newest_letter(ref) if state == "dead" else 0
        letters = letters_of(ref.of(token, ALL)) if token else ()
        return Contents(info, shown, page, letters, token)

    def read_target(self, ref: Ref) -> Contents:
        """Return the figures, and the dead letters that are meant."""
        return Contents(self.read(ref), letters=letters_of(ref))

    def page(self, ref: Ref, report: Contents) -> Detail:
        """Return the figures and one page of items, or one item."""
        if "item" in report.asked:
            return _item_detail(ref, report)
        info, state = report.info, report.asked["state"]
        return Detail(
            facts=self.row(info),
            tables=[*_groups(ref, report), _items(ref, report)],
            explanation=[
                _(
                    "First in, first out. An item is delivered again if its consumer fails,"
                    " or if its process dies and the lease ends."
                ),
                _ASIDE,
                _(
                    "The bound is shown once somebody has changed it for all; until then each"
                    " program has its own."
                ),
            ],
            tabs=[
                (label, count, "" if one == state else _address(ref, state=one))
                for one, (label, count) in _numbers(info).items()
            ],
            search={**report.asked, "clear": _address(ref, state=state)},
        )


def _numbers(info: QueueInfo) -> dict[str, tuple[Text, int]]:
    """Return the title of each state, and how many items are in it."""
    return {
        "dead": (_("Dead letters"), info.dead),
        "delivered": (_("Deliveries"), len(info.deliveries)),
        "ready": (_("Ready"), info.ready),
    }


def _groups(ref: Ref, report: Contents) -> list[Table[Any]]:
    """Return the dead letters by their reasons, the most frequent ones first."""
    groups = Counter(reason_group(one.reason) for one in report.letters)
    shown = groups.most_common(_MOST_GROUPS)
    hint: Text = ""
    if len(shown) < len(groups) or len(report.letters) < report.info.dead:
        values = {"shown": len(shown), "groups": len(groups), "count": len(report.letters)}
        hint = _("%(shown)d of %(groups)d reasons, of %(count)d dead letters") % values

    def offers(group: tuple[str, int]) -> list[Offer]:
        target = f"{REASON}{group[0]}"
        return _offers_of_dead(ref.of(report.newest, target), group[0])

    table = Table("groups", _("By reason"), _GROUP, shown, hint=hint, offers_of=offers)
    return [table] if shown else []


def _items(ref: Ref, report: Contents) -> Table[QueueItem]:
    """Return a page of items, what may be done with them, and the addresses of other pages."""
    asked, info, page = report.asked, report.info, report.page
    state, search, backwards = asked["state"], asked["q"], "before" in asked
    items = page.items[::-1] if backwards else page.items
    title, total = _numbers(info)[state]
    values = {"shown": len(items), "found": total, "looked": page.looked_at}
    hint = _("%(shown)d of %(found)d shown")
    if search:
        hint = _("%(shown)d found in %(looked)d of %(found)d items")
    deliveries = {one.id: one for one in info.deliveries}

    def offers(item: QueueItem) -> list[Offer]:
        one = deliveries.get(item.id) if state == "delivered" else None
        return [_take_back(ref, one)] if one else []

    return Table(
        "items",
        title,
        _columns(ref, state, deliveries),
        items,
        _("Nothing matches.") if search else _("There are none."),
        hint % values,
        offers,
        lambda item: str(item.id) if state == "dead" else "",
        _bulk_offers(ref.of(report.newest, SELECTED), state, search),
        _other_pages(ref, report, items),
    )


def _columns(ref: Ref, state: str, deliveries: Mapping[int, DeliveryInfo]) -> Columns[QueueItem]:
    """Return the columns of a page of items in a state."""

    def number(item: QueueItem) -> Cell:
        return Cell(item.id, "number", link=_address(ref, item=item.id))

    def of_delivery(cell: Callable[[DeliveryInfo], Cell], empty: Cell, item: QueueItem) -> Cell:
        one = deliveries.get(item.id)
        return empty if one is None else cell(one)

    first = (_("Item"), number), (_("Body"), lambda item: Cell(item.body, "data"))
    if state != "delivered":
        return [*first, *PUT_BACK]
    state_of = partial(of_delivery, _state_of, _STATES["delivered"][0])
    following = [(label, partial(of_delivery, cell, Cell(None))) for label, cell in DELIVERY[:2]]
    return [*first, (_("State"), state_of), *following]


def _other_pages(ref: Ref, report: Contents, items: Sequence[QueueItem]) -> tuple[str, str]:
    asked, previous, following = report.asked, None, report.page.after
    if items and "after" in asked:
        previous = items[0].id
    if "before" in asked:
        previous, following = report.page.after, items[-1].id if items else None
    same = {"state": asked["state"], "q": asked["q"], "order": asked["order"]}
    return (
        "" if previous is None else _address(ref, **same, before=previous),
        "" if following is None else _address(ref, **same, after=following),
    )


def _bulk_offers(selected: Ref, state: str, search: str) -> list[Offer]:
    ref = selected.of(selected.token, f"{MATCHING}{search}" if search else ALL)
    if state != "dead":
        ready = selected.of(selected.token, READY)
        return [Offer("discard", _("Discard all…"), ready, True)] if state == READY else []
    return [
        Offer("retry", _("Put the selected ones back…"), selected),
        Offer("discard", _("Discard the selected ones…"), selected, True),
        Offer("retry", _("Put back all that match…") if search else _("Put all back…"), ref),
        Offer("discard", _("Discard all that match…") if search else _("Discard all…"), ref, True),
    ]


def _offers_of_dead(ref: Ref, named: str = "") -> list[Offer]:
    discard = Offer("discard", _("Discard…"), ref, danger=True, named=named)
    return [Offer("retry", _("Put back…"), ref, named=named), discard]


def _take_back(ref: Ref, one: DeliveryInfo) -> Offer:
    taken = ref.of(one.token, str(one.id))
    return Offer("release", _("Take back…"), taken, danger=True, named=str(one.id))


def _item_detail(ref: Ref, report: Contents) -> Detail:
    """Return all that is known of one item."""
    number, found = report.asked["item"], report.found
    part = _("Item %(number)s") % {"number": number}
    if found is None:
        gone = _("It is not in the queue: it was acknowledged, put back as a new item, or removed.")
        return Detail([], explanation=[gone], part=part)
    item, one, (shown, meaning) = found.item, found.delivery, _STATES[found.state]
    because, _age, deliveries = facts_of(PUT_BACK, item)
    facts = [(_("State"), shown), (_("Put"), Cell(item.at, "moment")), deliveries, because]
    offers = []
    if one is not None:
        facts += facts_of(DELIVERY, one)
        offers = [_take_back(ref, one)]
    elif found.state == "dead":
        offers = _offers_of_dead(ref.of(item.id, str(item.id)))
    body = item.body if isinstance(item.body, str) else json_lines(item.body)
    facts.append((_("Body"), Cell(body, "block")))
    return Detail(facts, explanation=[meaning], offers=offers, part=part)


def _address(ref: Ref, **more: str | int) -> str:
    return f"?{urlencode({'backend': ref.alias, 'name': ref.name, **more})}"
