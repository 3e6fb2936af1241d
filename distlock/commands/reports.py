"""``manage.py locks group``, ``barrier``, ``double-barrier``, ``event``, ``topic``, ``names``.

These are only looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand

from distlock.commands import output
from distlock.commands.exit_codes import NOT_HELD, fail
from distlock.commands.recipe_command import (
    CHANGING,
    RecipeCommand,
    Verb,
    add_shown,
    ask,
    data,
    plain,
    write_json,
    write_table,
)
from distlock.recipes.barrier import Barrier, BarrierInfo, DoubleBarrier
from distlock.recipes.event import Event, EventInfo
from distlock.recipes.group import Group, Member
from distlock.recipes.log import Message, Topic
from distlock.recipes.names import Address, Names
from distlock.types.lease import Kind


class ReportCommand(RecipeCommand[Any]):
    """A command about a kind of recipe that can be listed and shown."""

    def __init__(
        self,
        kind: Kind,
        help: str,
        read: Callable[[str, str], Any],
        heading: output.Row,
        row: Callable[[Any], output.Row],
        *,
        part: str = "",
        part_heading: output.Row = (),
        part_row: Callable[[Any], output.Row] | None = None,
    ) -> None:
        """Describe the command; see RecipeCommand for what is not told here.

        ``show`` lists the entries of a field of the report, ``part``, or of the report itself if
        that is empty, with ``part_heading`` and ``part_row``.
        """
        verbs = {"show": Verb("Show one.", add_shown, self._show)}
        super().__init__(kind, help, read, heading, row, verbs)
        self._part, self._part_heading, self._part_row = part, part_heading, part_row

    def _show(
        self, command: BaseCommand, *, name: str, using: str, json: bool, **others: object
    ) -> None:
        report = ask(using, lambda: self._read(using, name))
        if json:
            said = plain(report)
            fields = said if isinstance(said, dict) else {"entries": said}
            write_json(command, {"using": using, "name": name, **fields})
            return
        command.stdout.write(f"{output.quoted(name)} on {using}")
        labels = (label.lower() for label in self._heading)
        output.write_fields(zip(labels, self._row(report), strict=True), command.stdout.write)
        if self._part_row is not None:
            entries = getattr(report, self._part) if self._part else report
            write_table(command, self._part_heading, map(self._part_row, entries))


def _barrier(info: BarrierInfo) -> output.Row:
    state = "waits" if info.waiting else "empty"
    parties = output.NOTHING if info.parties is None else str(info.parties)
    return ("broken" if info.broken else state, str(len(info.waiting)), parties)


def _event(info: EventInfo) -> output.Row:
    by = output.NOTHING if info.by is None else output.quoted(info.by)
    return ("set" if info.is_set else "not set", by, output.moment(info.at))


def _topic(messages: tuple[Message, ...]) -> output.Row:
    if not messages:
        return (output.NOTHING,) * 3
    last = messages[0]
    return str(last.number), output.moment(last.at), output.quoted(last.author)


def _message(message: Message) -> output.Row:
    return (*_topic((message,)), data(message.message))


def _names(addresses: tuple[Address, ...]) -> output.Row:
    return (str(len({address.name for address in addresses})), str(len(addresses)))


def _address(address: Address) -> output.Row:
    return (
        output.quoted(address.address),
        "unique" if address.unique else "service",
        output.owner(address.owner),
        str(address.token),
        output.quoted(address.name),
    )


def _show_group(
    command: BaseCommand, *, name: str, using: str, json: bool, **others: object
) -> None:
    members = ask(using, lambda: Group(name, using=using).members())
    if json:
        write_json(command, {"using": using, "name": name, "members": members})
    else:
        heading = ("MEMBER", "OWNER", "THERE FOR", "TOKEN", "DATA")
        write_table(command, heading, map(_member, members))
    if not members:
        fail(NOT_HELD, f"nobody is in group {name!r} on {using!r}")


def _member(member: Member) -> output.Row:
    return (
        output.quoted(member.name),
        output.owner(member.owner),
        output.duration((datetime.now(UTC) - member.since).total_seconds()),
        str(member.token),
        data(member.data),
    )


#: Messages of a topic that are listed.
_MOST_MESSAGES = 20
_BARRIER = ("STATE", "WAITING", "PARTIES")
_WAITING: dict[str, Any] = {
    "part": "waiting",
    "part_heading": ("SINCE", "TOKEN", "OWNER"),
    "part_row": lambda one: (output.moment(one.since), str(one.token), output.owner(one.owner)),
}

COMMANDS = {
    "barrier": ReportCommand(
        Kind.BARRIER,
        "Barriers: list, show.",
        lambda alias, name: Barrier(name, using=alias).info(),
        _BARRIER,
        _barrier,
        **_WAITING,
    ),
    "double-barrier": ReportCommand(
        Kind.DOUBLE_BARRIER,
        "Double barriers: list, show.",
        lambda alias, name: DoubleBarrier(name, using=alias).info(),
        _BARRIER,
        _barrier,
        **_WAITING,
    ),
    "event": ReportCommand(
        Kind.EVENT,
        "Events: list, show.",
        lambda alias, name: Event(name, using=alias).info(),
        ("STATE", "BY", "CHANGED"),
        _event,
    ),
    "topic": ReportCommand(
        Kind.TOPIC,
        "Topics: list, show the last messages.",
        lambda alias, name: Topic(name, using=alias).history()[:_MOST_MESSAGES],
        ("LAST", "PUBLISHED", "AUTHOR"),
        _topic,
        part_heading=("NUMBER", "PUBLISHED", "AUTHOR", "MESSAGE"),
        part_row=_message,
    ),
    "names": ReportCommand(
        Kind.NAMES,
        "Registered names: list the namespaces, show one.",
        lambda alias, name: Names(name, using=alias).resolve_all(),
        ("NAMES", "ADDRESSES"),
        _names,
        part_heading=("ADDRESS", "KIND", "OWNER", "TOKEN", "NAME"),
        part_row=_address,
    ),
}

GROUP = RecipeCommand(
    Kind.GROUP,
    "Groups of processes: list, show.",
    lambda alias, name: Group(name, using=alias).members(),
    ("MEMBERS", "LAST JOINED"),
    lambda members: (str(len(members)), output.moment(members[-1].since if members else None)),
    {"show": Verb("Show who is in a group.", add_shown, _show_group, CHANGING)},
    list_help="List the groups, and how many are in each.",
    entry=lambda members: {"members": members},
)
