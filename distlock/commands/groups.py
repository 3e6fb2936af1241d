"""``manage.py locks group``: who is in a group, and removing a member."""

from __future__ import annotations

from datetime import UTC, datetime

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import output
from distlock.commands.arguments import token
from distlock.commands.confirm import add_yes, confirm
from distlock.commands.exit_codes import NOT_HELD, fail
from distlock.commands.recipe_command import (
    ASKING,
    CHANGING,
    RecipeCommand,
    Verb,
    add_name,
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


def _add_removed(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument(
        "--token", type=token, required=True, help="That of the member, as `group show` prints it."
    )
    add_yes(parser)


def _remove(
    command: BaseCommand, *, name: str, using: str, token: int, interactive: bool, **others: object
) -> None:
    group = Group(name, using=using)
    found = [one for one in ask(using, group.members) if one.token == token]
    missing = f"group {name!r} on {using!r} has no member with token {token}"
    if not found:
        fail(NOT_HELD, missing)
    command.stdout.write(
        f"{output.quoted(found[0].name)}, {output.owner(found[0].owner)}, is in"
        f" {output.quoted(name)} on {using} since {output.moment(found[0].since)}. Its process is"
        " not ended; it learns of this with its next renewal, and does not join again by itself."
    )
    confirm(command, interactive, "Remove it?")
    if not ask(using, lambda: group.remove(token)):
        fail(NOT_HELD, f"{missing} any more; nothing was done")
    command.stdout.write(command.style.SUCCESS("Removed."))


VERBS = {
    "show": Verb("Show who is in a group.", add_shown, _show, CHANGING),
    "remove": Verb(
        "Remove the member that has a token. Asks first.", _add_removed, _remove, ASKING
    ),
}

COMMAND = RecipeCommand(
    Kind.GROUP,
    "Groups of processes: list, show, remove a member.",
    lambda alias, name: Group(name, using=alias).members(),
    ("MEMBERS", "LAST JOINED"),
    lambda members: (str(len(members)), output.moment(members[-1].since if members else None)),
    VERBS,
    list_help="List the groups, and how many are in each.",
    entry=lambda members: {"members": members},
)
