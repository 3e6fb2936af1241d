"""Groups, barriers, events, topics and registered names: pages to look at, with nothing to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from django.db.models import Model
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from distlock import models
from distlock.admin.coordination.pages import (
    Cell,
    Columns,
    Detail,
    Facts,
    RecipePages,
    Table,
    facts_of,
    json_line,
    rows_of,
    some_of,
)
from distlock.recipes.barrier import Barrier, BarrierInfo, DoubleBarrier
from distlock.recipes.event import Event, EventInfo
from distlock.recipes.group import Group, Member
from distlock.recipes.log import Message, Topic
from distlock.recipes.names import Address, Names
from distlock.types.lease import Holder, Kind

#: Names that a row of a list has, and messages that the page of a topic shows.
_MOST_NAMES, _MOST_MESSAGES = 5, 20

_MEMBER: Columns[Member] = (
    (_("Member"), lambda member: Cell(member.name, "mono")),
    (_("Owner"), lambda member: Cell(member.owner, "owner")),
    (_("There for"), lambda member: Cell(member.since, "age")),
    (_("Data"), lambda member: Cell(member.data or None, "data")),
    (_("Token"), lambda member: Cell(member.token, "number")),
)


def _last_joined(members: Sequence[Member]) -> object:
    return members[-1].since if members else None


class GroupPages(RecipePages[Sequence[Member]]):
    """The members of a group: since when they are there, and their data."""

    kind = Kind.GROUP
    model = models.Group
    columns: ClassVar[Columns[Sequence[Member]]] = (
        (_("Members"), lambda group: Cell(len(group), "number")),
        (_("Who"), lambda group: Cell(some_of([one.name for one in group], _MOST_NAMES), "mono")),
        (_("Last joined"), lambda group: Cell(_last_joined(group), "age")),
    )
    empty = _("Groups are listed here once a process has joined one.")

    def read(self, alias: str, name: str, *, whole: bool) -> Sequence[Member]:
        """Return the members that are there."""
        return Group(name, using=alias).members()

    def detail(self, alias: str, name: str, report: Sequence[Member]) -> Detail:
        """Return the members with what each says of itself."""
        count = ngettext("%(count)d member", "%(count)d members", len(report))
        hint = count % {"count": len(report)} if report else ""
        rows, empty = rows_of(_MEMBER, report), _("Nobody is there.")
        return Detail(
            facts=[
                (_("Members"), Cell(len(report), "number")),
                (_("Last joined"), Cell(_last_joined(report), "moment")),
            ],
            tables=[Table("members", _("Members"), rows, empty, hint)],
            explanation=[
                _(
                    "Each process that is there renews its record. If a process dies, or is cut"
                    " off for longer than its lease, it is gone from here."
                ),
                _(
                    "One that was only away joins again by itself, as a new member with a new"
                    " token."
                ),
            ],
        )


_WAITING: Columns[Holder] = (
    (_("Owner"), lambda holder: Cell(holder.owner, "owner")),
    (_("For"), lambda holder: Cell(holder.since, "age")),
    (_("Description"), lambda holder: Cell(holder.description)),
    (_("Token"), lambda holder: Cell(holder.token, "number")),
)


def _barrier_state(report: BarrierInfo) -> Cell:
    if report.broken is not None:
        return Cell(_("Broken"), "state", "expired")
    return Cell(_("Waits"), "state", "held") if report.waiting else Cell(_("Empty"), "state")


class BarrierPages(RecipePages[BarrierInfo]):
    """Who waits for whom."""

    kind = Kind.BARRIER
    model: ClassVar[type[Model]] = models.Barrier
    columns: ClassVar[Columns[BarrierInfo]] = (
        (_("State"), _barrier_state),
        (_("Waiting"), lambda report: Cell(len(report.waiting), "number")),
        (_("Parties"), lambda report: Cell(report.parties, "number")),
    )
    empty = _("Barriers are listed here once somebody has waited at one.")

    def read(self, alias: str, name: str, *, whole: bool) -> BarrierInfo:
        """Return who waits, and whether it is broken."""
        return Barrier(name, using=alias).info()

    def detail(self, alias: str, name: str, report: BarrierInfo) -> Detail:
        """Return who has come."""
        state, *numbers = self.row(report)
        waiting = rows_of(_WAITING, report.waiting)
        return Detail(
            facts=[state, (_("Why"), Cell(report.broken)), *numbers],
            tables=[Table("waiting", _("Waiting"), waiting, empty=_("Nobody waits."))],
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


def _event_state(report: EventInfo) -> Cell:
    return Cell(_("Is set"), "state", "held") if report.is_set else Cell(_("Is not set"), "state")


class EventPages(RecipePages[EventInfo]):
    """Whether it is set, and who did that."""

    kind = Kind.EVENT
    model = models.Event
    columns: ClassVar[Columns[EventInfo]] = (
        (_("State"), _event_state),
        (_("Changed by"), lambda report: Cell(report.by, "mono")),
        (_("Changed"), lambda report: Cell(report.at, "moment")),
    )
    empty = _("Events are listed here once they have been set.")

    def read(self, alias: str, name: str, *, whole: bool) -> EventInfo:
        """Return whether it is set, and who did that."""
        return Event(name, using=alias).info()

    def detail(self, alias: str, name: str, report: EventInfo) -> Detail:
        """Return the same."""
        facts = [*self.row(report), (_("Token"), Cell(report.token, "number"))]
        return Detail(facts, explanation=[_("It stays as it is until a program changes it.")])


_MESSAGE: Columns[Message] = (
    (_("Number"), lambda message: Cell(message.number, "number")),
    (_("Message"), lambda message: Cell(json_line(message.message), "data")),
    (_("Published by"), lambda message: Cell(message.who)),
    (_("Published"), lambda message: Cell(message.at, "moment")),
)


class TopicPages(RecipePages[Sequence[Message]]):
    """What was published last."""

    kind = Kind.TOPIC
    model = models.Topic
    columns: ClassVar[Columns[Message]] = (
        (_("Last number"), _MESSAGE[0][1]),
        (_("Last message"), _MESSAGE[1][1]),
        *_MESSAGE[2:],
    )
    empty = _("Topics are listed here once something was published.")

    def read(self, alias: str, name: str, *, whole: bool) -> Sequence[Message]:
        """Return the last messages, the newest one first."""
        return Topic(name, using=alias).history()[: _MOST_MESSAGES if whole else 1]

    def row(self, report: Sequence[Message]) -> Facts:
        """Return the last message."""
        return facts_of(self.columns, report[0] if report else None)

    def detail(self, alias: str, name: str, report: Sequence[Message]) -> Detail:
        """Return the last messages."""
        number, _message, _who, published = self.row(report)
        rows, empty = rows_of(_MESSAGE, report), _("No message is kept.")
        return Detail(
            facts=[number, published],
            tables=[Table("messages", _("Messages"), rows, empty, hint=_("newest first"))],
            explanation=[_("Each subscriber gets each message once and in order.")],
        )


_ADDRESS: Columns[Address] = (
    (_("Name"), lambda address: Cell(address.name, "mono")),
    (_("Address"), lambda address: Cell(address.address, "mono")),
    (_("Kind"), lambda address: Cell(_("unique") if address.unique else _("service"))),
    (_("Owner"), lambda address: Cell(address.owner, "owner")),
    (_("For"), lambda address: Cell(address.since, "age")),
    (_("Data"), lambda address: Cell(address.data or None, "data")),
    (_("Token"), lambda address: Cell(address.token, "number")),
)


def _names_in(addresses: Sequence[Address]) -> list[str]:
    return list(dict.fromkeys(address.name for address in addresses))


class NamesPages(RecipePages[Sequence[Address]]):
    """Who has which name."""

    kind = Kind.NAMES
    model = models.Names
    columns: ClassVar[Columns[Sequence[Address]]] = (
        (_("Names"), lambda report: Cell(len(_names_in(report)), "number")),
        (_("Which"), lambda report: Cell(some_of(_names_in(report), _MOST_NAMES), "mono")),
    )
    empty = _("Namespaces are listed here once a name was registered in them.")

    def read(self, alias: str, name: str, *, whole: bool) -> Sequence[Address]:
        """Return all that is registered."""
        return Names(name, using=alias).resolve_all()

    def detail(self, alias: str, name: str, report: Sequence[Address]) -> Detail:
        """Return all that is registered."""
        names = rows_of(_ADDRESS, report)
        return Detail(
            facts=[(_("Addresses"), Cell(len(report), "number"))],
            tables=[Table("names", _("Names"), names, empty=_("No name is registered."))],
            explanation=[
                _("A unique name belongs to one process at a time, for as long as that lives."),
                _("A service may have several addresses under one name."),
            ],
        )
