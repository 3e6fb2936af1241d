"""Queues: what waits, what is being delivered, and dead letters, in pages; and one item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from distlock.admin.coordination.pages import (
    Cell,
    Columns,
    Detail,
    Facts,
    Offer,
    RecipePages,
    Ref,
    Table,
    TableRow,
    Text,
    facts_of,
    json_lines,
)
from distlock.admin.coordination.queue_actions import (
    ACTIONS,
    ALL,
    MATCHING,
    READY,
    REASON,
    SEARCH_SECONDS,
    SELECTED,
    Contents,
    letters_of,
    number_in,
    reason_group,
)
from distlock.models import Queue as QueueModel
from distlock.recipes.queue import Queue
from distlock.recipes.queue_items import DeliveryInfo, QueueInfo, QueueItem
from distlock.recipes.queue_operations import STATES
from distlock.types.lease import Kind

#: Items on a page, groups of dead letters, and characters of a search.
_PAGE_SIZE, _MOST_GROUPS, _MOST_SEARCHED = 25, 20, 200


_ASIDE = _("What was delivered too often, and never acknowledged, is put aside as dead.")
_AGAIN = _("It is delivered again if its consumer fails, or if its process dies.")
#: The label of each state of items, and what it means.
_STATES: dict[str, tuple[Cell, Text]] = {
    "ready": (Cell(_("Ready"), "state"), _("It waits for a consumer.")),
    "delivered": (Cell(_("Being delivered"), "state", "held"), _AGAIN),
    "delayed": (Cell(_("Delayed"), "state"), _("It was put back for later.")),
    "dead": (Cell(_("Dead"), "state", "expired"), _ASIDE),
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
    return Cell(info.dead, "state", "expired") if info.dead else Cell(0, "number")


class QueuePages(RecipePages[Contents]):
    """How full it is, what is being delivered, and what was put aside."""

    kind = Kind.QUEUE
    model = QueueModel
    columns: ClassVar[Columns[QueueInfo]] = (
        (_("Ready"), _depth),
        (_("Being delivered"), lambda info: Cell(info.delivered, "number")),
        (_("Delayed"), lambda info: Cell(info.delayed, "number")),
        (_("Dead letters"), _dead),
        (_("Bound"), lambda info: Cell(info.maxsize or None, "number")),
        (_("Oldest waits for"), lambda info: Cell(info.oldest, "age")),
    )
    empty = _("Queues are listed here once something was put into one.")
    actions = ACTIONS

    def read(self, alias: str, name: str, *, whole: bool) -> Contents:
        """Return the figures."""
        return Contents(Queue(name, using=alias).info())

    def read_page(self, alias: str, name: str, asked: Mapping[str, str]) -> Contents:
        """Return one page of the items in one state, or one item; see _address()."""
        queue = Queue(name, using=alias)
        info = queue.info()
        if number := number_in(asked.get("item", "")):
            return Contents(info, asked, found=queue.find(number))
        state = asked.get("state", "")
        if state not in STATES:
            filled = {"dead": info.dead, "delivered": info.delivered or info.delayed, "ready": 1}
            state = next(state for state, count in filled.items() if count)
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
        last = queue.page("dead", 1, reverse=True).items if state == "dead" else ()
        token = last[0].id if last else 0
        letters = letters_of(Ref(alias, name, token, ALL)) if last else ()
        return Contents(info, shown, page, letters, token)

    def read_target(self, ref: Ref) -> Contents:
        """Return the figures, and the dead letters that are meant."""
        return replace(self.read(ref.alias, ref.name, whole=True), letters=letters_of(ref))

    def row(self, report: Contents) -> Facts:
        """Return how many of each there are."""
        return facts_of(self.columns, report.info)

    def detail(self, alias: str, name: str, report: Contents) -> Detail:
        """Return the figures and one page of items, or one item."""
        if "item" in report.asked:
            return _item_detail(alias, name, report)
        info, state = report.info, report.asked["state"]
        return Detail(
            facts=self.row(report),
            tables=[*_groups(alias, name, report), _items(alias, name, report)],
            explanation=[
                _(
                    "First in, first out. What was taken is delivered again if its consumer fails,"
                    " or if its process dies and the lease ends."
                ),
                _ASIDE,
                _(
                    "The bound is shown once somebody has changed it for all; else each program has"
                    " said its own."
                ),
            ],
            tabs=[
                (label, count, "" if one == state else _address(alias, name, state=one))
                for one, (label, count) in _numbers(info).items()
            ],
            search={**report.asked, "clear": _address(alias, name, state=state)},
        )


def _numbers(info: QueueInfo) -> dict[str, tuple[Text, int]]:
    """Return the title of each state, and how many items are in it."""
    return {
        "dead": (_("Dead letters"), info.dead),
        "delivered": (_("Deliveries"), len(info.deliveries)),
        "ready": (_("Ready"), info.ready),
    }


def _groups(alias: str, name: str, report: Contents) -> list[Table]:
    """Return the dead letters by their reasons, the most frequent ones first."""
    groups, rows = Counter(reason_group(one.reason) for one in report.letters), []
    for group, count in groups.most_common(_MOST_GROUPS):
        ref = Ref(alias, name, report.newest, f"{REASON}{group}")
        cells = (_("Put back because"), Cell(group)), (_("Dead letters"), Cell(count, "number"))
        rows.append(TableRow(cells, _offers_of_dead(ref, group)))
    hint = ""
    if len(rows) < len(groups) or len(report.letters) < report.info.dead:
        values = {"shown": len(rows), "groups": len(groups), "count": len(report.letters)}
        hint = _("%(shown)d of %(groups)d reasons, of %(count)d dead letters") % values
    return [Table("groups", _("By reason"), rows, hint=hint)] if rows else []


def _items(alias: str, name: str, report: Contents) -> Table:
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
    rows = [_row(alias, name, state, one, deliveries.get(one.id)) for one in items]
    empty = _("Nothing matches.") if search else _("There are none.")
    offers = _bulk_offers(Ref(alias, name, report.newest, SELECTED), state, search)
    pages = _other_pages(alias, name, report, items)
    return Table("items", title, rows, empty, hint % values, offers, pages)


def _other_pages(
    alias: str, name: str, report: Contents, items: Sequence[QueueItem]
) -> tuple[str, str]:
    asked, previous, following = report.asked, None, report.page.after
    if items and "after" in asked:
        previous = items[0].id
    if "before" in asked:
        previous, following = report.page.after, items[-1].id if items else None
    same = {"state": asked["state"], "q": asked["q"], "order": asked["order"]}
    return (
        "" if previous is None else _address(alias, name, **same, before=previous),
        "" if following is None else _address(alias, name, **same, after=following),
    )


def _bulk_offers(selected: Ref, state: str, search: str) -> list[Offer]:
    ref = replace(selected, target=f"{MATCHING}{search}" if search else ALL)
    if state != "dead":
        ready = replace(selected, target=READY)
        return [Offer("discard", _("Discard all…"), ready, True)] if state == READY else []
    return [
        Offer("retry", _("Put the selected ones back…"), selected),
        Offer("discard", _("Discard the selected ones…"), selected, True),
        Offer("retry", _("Put back all that match…") if search else _("Put all back…"), ref),
        Offer("discard", _("Discard all that match…") if search else _("Discard all…"), ref, True),
    ]


_PUT_BACK: Columns[QueueItem] = (
    (_("Put back because"), lambda item: Cell(item.reason)),
    (_("Put"), lambda item: Cell(item.at, "age")),
    (_("Deliveries"), lambda item: Cell(item.attempts, "number")),
)
_DELIVERY: Columns[DeliveryInfo] = (
    (_("Consumer"), lambda one: Cell(None if one.delayed else one.owner, "owner")),
    (_("For"), lambda one: Cell(one.since, "age")),
    (_("Token"), lambda one: Cell(one.token, "number")),
)


def _row(alias: str, name: str, state: str, item: QueueItem, one: DeliveryInfo | None) -> TableRow:
    link = _address(alias, name, item=item.id)
    cells: list[tuple[Text, Cell]] = [
        (_("Item"), Cell(item.id, "number", link=link)),
        (_("Body"), Cell(item.body, "data")),
    ]
    if state != "delivered":
        key = str(item.id) if state == "dead" else ""
        return TableRow([*cells, *facts_of(_PUT_BACK, item)], key=key)
    code = "delayed" if one and one.delayed else state
    cells += [(_("State"), _STATES[code][0]), *facts_of(_DELIVERY, one)[:2]]
    return TableRow(cells, [_take_back(alias, name, one)] if one else [])


def _offers_of_dead(ref: Ref, named: str = "") -> list[Offer]:
    discard = Offer("discard", _("Discard…"), ref, danger=True, named=named)
    return [Offer("retry", _("Put back…"), ref, named=named), discard]


def _take_back(alias: str, name: str, one: DeliveryInfo) -> Offer:
    ref = Ref(alias, name, one.token, str(one.id))
    return Offer("release", _("Take back…"), ref, danger=True, named=str(one.id))


def _item_detail(alias: str, name: str, report: Contents) -> Detail:
    """Return all that is known of one item."""
    number, found = report.asked["item"], report.found
    part = _("Item %(number)s") % {"number": number}
    if found is None:
        gone = _("It is not in the queue: it was acknowledged, put back as a new item, or removed.")
        return Detail([], explanation=[gone], part=part)
    item, one, (state, meaning) = found.item, found.delivery, _STATES[found.state]
    facts: list[tuple[Text, Cell]] = [
        (_("State"), state),
        (_("Put"), Cell(item.at, "moment")),
        (_("Deliveries"), Cell(item.attempts, "number")),
        (_("Put back because"), Cell(item.reason)),
    ]
    offers = []
    if one is not None:
        facts += facts_of(_DELIVERY, one)
        offers = [_take_back(alias, name, one)]
    elif found.state == "dead":
        offers = _offers_of_dead(Ref(alias, name, item.id, str(item.id)))
    body = item.body if isinstance(item.body, str) else json_lines(item.body)
    facts.append((_("Body"), Cell(body, "block")))
    return Detail(facts, explanation=[meaning], offers=offers, part=part)


def _address(alias: str, name: str, **more: str | int) -> str:
    return f"?{urlencode({'backend': alias, 'name': name, **more})}"
