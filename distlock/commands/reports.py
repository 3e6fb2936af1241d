"""``manage.py locks group``, ``barrier``, ``double-barrier``, ``event``, ``topic``, ``names``.

These are only looked at.
"""

from __future__ import annotations

from typing import Any

from distlock.commands import output
from distlock.commands.recipe_command import RecipeCommand, Show
from distlock.recipes.barrier import Barrier, BarrierInfo, DoubleBarrier
from distlock.recipes.event import Event, EventInfo
from distlock.recipes.group import Group, Member
from distlock.recipes.log import Message, Topic
from distlock.recipes.names import Address, Names
from distlock.types.lease import Holder, Kind


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
    return str(last.number), output.moment(last.at), output.quoted(last.who)


def _message(message: Message) -> output.Row:
    return (*_topic((message,)), output.data(message.message))


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


def _member(member: Member) -> output.Row:
    return (
        output.quoted(member.name),
        output.owner(member.owner),
        output.age(member.since),
        str(member.token),
        output.data(member.data),
    )


def _waiting(holder: Holder) -> output.Row:
    return (output.moment(holder.since), str(holder.token), output.owner(holder.owner))


#: Messages of a topic that are listed.
_MOST_MESSAGES = 20
_BARRIER = ("STATE", "WAITING", "PARTIES")
_PARTIES: Show[BarrierInfo] = Show(
    parts=lambda info: info.waiting, heading=("SINCE", "TOKEN", "OWNER"), row=_waiting
)

COMMANDS: dict[str, RecipeCommand[Any]] = {
    "group": RecipeCommand(
        Kind.GROUP,
        "Groups of processes: list, show.",
        lambda alias, name: Group(name, using=alias).members(),
        ("MEMBERS", "LAST JOINED"),
        lambda members: (str(len(members)), output.moment(members[-1].since if members else None)),
        show=Show(
            "Show who is in a group.",
            lambda members: members,
            ("MEMBER", "OWNER", "THERE FOR", "TOKEN", "DATA"),
            _member,
            nobody="nobody is in group",
        ),
        list_help="List the groups, and how many are in each.",
        entries="members",
    ),
    "barrier": RecipeCommand(
        Kind.BARRIER,
        "Barriers: list, show.",
        lambda alias, name: Barrier(name, using=alias).info(),
        _BARRIER,
        _barrier,
        show=_PARTIES,
    ),
    "double-barrier": RecipeCommand(
        Kind.DOUBLE_BARRIER,
        "Double barriers: list, show.",
        lambda alias, name: DoubleBarrier(name, using=alias).info(),
        _BARRIER,
        _barrier,
        show=_PARTIES,
    ),
    "event": RecipeCommand(
        Kind.EVENT,
        "Events: list, show.",
        lambda alias, name: Event(name, using=alias).info(),
        ("STATE", "BY", "CHANGED"),
        _event,
        show=Show(),
    ),
    "topic": RecipeCommand(
        Kind.TOPIC,
        "Topics: list, show the last messages.",
        lambda alias, name: Topic(name, using=alias).history()[:_MOST_MESSAGES],
        ("LAST", "PUBLISHED", "WHO"),
        _topic,
        show=Show(
            parts=lambda messages: messages,
            heading=("NUMBER", "PUBLISHED", "WHO", "MESSAGE"),
            row=_message,
        ),
    ),
    "names": RecipeCommand(
        Kind.NAMES,
        "Registered names: list the namespaces, show one.",
        lambda alias, name: Names(name, using=alias).resolve_all(),
        ("NAMES", "ADDRESSES"),
        _names,
        show=Show(
            parts=lambda addresses: addresses,
            heading=("ADDRESS", "KIND", "OWNER", "TOKEN", "NAME"),
            row=_address,
        ),
    ),
}
