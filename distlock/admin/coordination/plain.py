"""Barriers, events, topics and registered names: pages to look at, with nothing to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from django.db.models import Model
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from distlock import models
from distlock.admin.coordination.cells import Cell, Detail, Table, TableRow, Text
from distlock.admin.coordination.recipe_pages import RecipePages
from distlock.recipes.barrier import Barrier, BarrierInfo, DoubleBarrier
from distlock.recipes.event import Event, EventInfo
from distlock.recipes.log import Message, Topic
from distlock.recipes.names import Address, Names
from distlock.types.lease import Kind

#: Messages that the page of a topic shows.
_MOST_MESSAGES = 20


class BarrierPages(RecipePages[BarrierInfo]):
    """Who waits for whom."""

    kind = Kind.BARRIER
    model: ClassVar[type[Model]] = models.Barrier
    columns = (gettext_lazy("State"), gettext_lazy("Waiting"), gettext_lazy("Parties"))
    empty = gettext_lazy("Barriers are listed here once somebody has waited at one.")

    def read(self, alias: str, name: str, *, whole: bool) -> BarrierInfo:
        """Return who waits, and whether it is broken."""
        return Barrier(name, using=alias).info()

    def row(self, report: BarrierInfo) -> TableRow:
        """Return how many have come, of how many."""
        return TableRow(
            [
                _barrier_state(report),
                Cell(len(report.waiting), "number"),
                Cell(report.parties, "number"),
            ]
        )

    def detail(self, alias: str, name: str, report: BarrierInfo) -> Detail:
        """Return who has come."""
        waiting = [
            TableRow(
                [
                    Cell(holder.owner, "owner"),
                    Cell(holder.since, "age"),
                    Cell(holder.description),
                    Cell(holder.token, "number"),
                ]
            )
            for holder in report.waiting
        ]
        return Detail(
            facts=[
                (_("State"), _barrier_state(report)),
                (_("Why"), Cell(report.broken)),
                (_("Waiting"), Cell(len(report.waiting), "number")),
                (_("Parties"), Cell(report.parties, "number")),
            ],
            tables=[
                Table(
                    "waiting",
                    _("Waiting"),
                    (_("Owner"), _("For"), _("Description"), _("Token")),
                    waiting,
                    empty=_("Nobody waits."),
                )
            ],
            explanation=[
                _("Those who have come wait until as many are there as there are parties."),
                _("If one of them gives up or dies, it is broken for all of them."),
            ],
        )


class DoubleBarrierPages(BarrierPages):
    """The same for those who begin and end together."""

    kind = Kind.DOUBLE_BARRIER
    model = models.DoubleBarrier

    def read(self, alias: str, name: str, *, whole: bool) -> BarrierInfo:
        """Return who waits or is inside, and whether it is broken."""
        return DoubleBarrier(name, using=alias).info()


def _barrier_state(report: BarrierInfo) -> Cell:
    if report.broken is not None:
        return Cell(_("Broken"), "state", "expired")
    return Cell(_("Waits"), "state", "held") if report.waiting else Cell(_("Empty"), "state")


class EventPages(RecipePages[EventInfo]):
    """Whether it is set."""

    kind = Kind.EVENT
    model = models.Event
    columns = (gettext_lazy("State"), gettext_lazy("Changed by"), gettext_lazy("Changed"))
    empty = gettext_lazy("Events are listed here once they have been set.")

    def read(self, alias: str, name: str, *, whole: bool) -> EventInfo:
        """Return whether it is set, and who did that."""
        return Event(name, using=alias).info()

    def row(self, report: EventInfo) -> TableRow:
        """Return whether it is set, and who did that."""
        label, style = (_("Is set"), "held") if report.is_set else (_("Is not set"), "free")
        return TableRow(
            [Cell(label, "state", style), Cell(report.by, "mono"), Cell(report.at, "moment")]
        )

    def detail(self, alias: str, name: str, report: EventInfo) -> Detail:
        """Return the same."""
        facts: list[tuple[Text, Cell]] = [*zip(self.columns, self.row(report).cells, strict=True)]
        facts.append((_("Token"), Cell(report.token, "number")))
        return Detail(facts, explanation=[_("It stays as it is until a program changes it.")])


class TopicPages(RecipePages[Sequence[Message]]):
    """What was published last."""

    kind = Kind.TOPIC
    model = models.Topic
    columns = (
        gettext_lazy("Last number"),
        gettext_lazy("Last message"),
        gettext_lazy("Published by"),
        gettext_lazy("Published"),
    )
    empty = gettext_lazy("Topics are listed here once something was published.")

    def read(self, alias: str, name: str, *, whole: bool) -> Sequence[Message]:
        """Return the last messages, the newest one first."""
        return Topic(name, using=alias).history()[: _MOST_MESSAGES if whole else 1]

    def row(self, report: Sequence[Message]) -> TableRow:
        """Return the last message."""
        return _message(report[0]) if report else TableRow([Cell(None) for _column in self.columns])

    def detail(self, alias: str, name: str, report: Sequence[Message]) -> Detail:
        """Return the last messages."""
        last = report[0] if report else None
        messages = Table(
            "messages",
            _("Messages"),
            (_("Number"), _("Message"), _("Published by"), _("Published")),
            [_message(message) for message in report],
            empty=_("No message is kept."),
            hint=_("newest first"),
        )
        return Detail(
            facts=[
                (_("Last number"), Cell(last and last.number, "number")),
                (_("Published"), Cell(last and last.at, "moment")),
            ],
            tables=[messages],
            explanation=[_("Each subscriber gets each message once and in order.")],
        )


def _message(message: Message) -> TableRow:
    return TableRow(
        [
            Cell(message.number, "number"),
            Cell(json.dumps(message.message, ensure_ascii=False), "data"),
            Cell(message.who),
            Cell(message.at, "moment"),
        ]
    )


class NamesPages(RecipePages[Sequence[Address]]):
    """Who has which name."""

    kind = Kind.NAMES
    model = models.Names
    columns = (gettext_lazy("Names"), gettext_lazy("Which"))
    empty = gettext_lazy("Namespaces are listed here once a name was registered in them.")

    def read(self, alias: str, name: str, *, whole: bool) -> Sequence[Address]:
        """Return all that is registered."""
        return Names(name, using=alias).resolve_all()

    def row(self, report: Sequence[Address]) -> TableRow:
        """Return how many names are registered, and the first few."""
        names = list(dict.fromkeys(address.name for address in report))
        some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        return TableRow([Cell(len(names), "number"), Cell(some, "mono")])

    def detail(self, alias: str, name: str, report: Sequence[Address]) -> Detail:
        """Return all that is registered."""
        rows = [
            TableRow(
                [
                    Cell(address.name, "mono"),
                    Cell(address.address, "mono"),
                    Cell(_("unique") if address.unique else _("service")),
                    Cell(address.owner, "owner"),
                    Cell(address.since, "age"),
                    Cell(address.data or None, "data"),
                    Cell(address.token, "number"),
                ]
            )
            for address in report
        ]
        return Detail(
            facts=[(_("Addresses"), Cell(len(report), "number"))],
            tables=[
                Table(
                    "names",
                    _("Names"),
                    (
                        _("Name"),
                        _("Address"),
                        _("Kind"),
                        _("Owner"),
                        _("For"),
                        _("Data"),
                        _("Token"),
                    ),
                    rows,
                    empty=_("No name is registered."),
                )
            ],
            explanation=[
                _("A unique name belongs to one process at a time, for as long as that lives."),
                _("A service may have several addresses under one name."),
            ],
        )
