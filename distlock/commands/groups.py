"""``manage.py locks group``: who is in a group."""

from __future__ import annotations

from datetime import UTC, datetime

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
    write_json,
    write_table,
)
from distlock.recipes.group import Group, Member
from distlock.types.lease import Kind


def _show(command: BaseCommand, *, name: str, using: str, json: bool, **others: object) -> None:
    members = ask(using, lambda: Group(name, using=using).members())
    if json:
        write_json(command, {"using": using, "name": name, "members": members})
    else:
        heading = ("MEMBER", "OWNER", "THERE FOR", "TOKEN", "DATA")
        write_table(command, heading, map(_row, members))
    if not members:
        fail(NOT_HELD, f"nobody is in group {name!r} on {using!r}")


def _row(member: Member) -> output.Row:
    return (
        output.quoted(member.name),
        output.owner(member.owner),
        output.duration((datetime.now(UTC) - member.since).total_seconds()),
        str(member.token),
        data(member.data),
    )


VERBS = {"show": Verb("Show who is in a group.", add_shown, _show, CHANGING)}

COMMAND = RecipeCommand(
    Kind.GROUP,
    "Groups of processes: list, show.",
    lambda alias, name: Group(name, using=alias).members(),
    ("MEMBERS", "LAST JOINED"),
    lambda members: (str(len(members)), output.moment(members[-1].since if members else None)),
    VERBS,
    list_help="List the groups, and how many are in each.",
    entry=lambda members: {"members": members},
)
