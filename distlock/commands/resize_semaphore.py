"""``manage.py locks resize NAME VALUE``: change for all how many seats a semaphore has."""

from __future__ import annotations

import argparse

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import output
from distlock.commands.arguments import add_alias, add_name, add_signature
from distlock.commands.exit_codes import DONE, FAILED, USAGE, epilog, fail
from distlock.commands.recipe_command import ask
from distlock.recipes.shared import Semaphore
from distlock.types.arguments import checked_count

HELP = (
    "Change for all how many seats a semaphore has. Nobody is evicted. Who still says another"
    " number is refused while others use it; when nobody does, the next one to say a number"
    ' decides. So this is for those who say none, or "agreed". A name that nobody uses, and for'
    " which nobody has said a number, is taken for a mistake unless --create is given."
)
EPILOG = epilog(DONE, FAILED, USAGE)


def add_arguments(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument("value", type=_value, metavar="VALUE", help="How many seats it is to have.")
    add_alias(parser)
    parser.add_argument(
        "--create", action="store_true", help="Set the number of one that nobody uses yet."
    )
    add_signature(parser)


def run(
    command: BaseCommand,
    *,
    name: str,
    value: int,
    using: str,
    create: bool,
    reason: str,
    who: str,
    **others: object,
) -> None:
    semaphore = Semaphore(name, using=using)
    # Who misspells a name would leave a record that no sweep forgets.
    if not create and not ask(using, semaphore.info).slots:
        fail(
            FAILED,
            f"Nobody uses a semaphore {output.quoted(name)} on {using}, and nobody has said how"
            " many seats it has. Say --create if the name is right.",
        )
    before = ask(using, lambda: semaphore.resize(value, reason=reason, who=who))
    taken = ask(using, semaphore.info).taken
    had = "had no number yet" if before is None else f"had {_seats(before)}"
    command.stdout.write(
        f"{output.quoted(name)} on {using} {had}, and has {value} now; {taken} taken."
    )
    if taken > value:
        command.stdout.write("Seats are granted again when enough of these have been left.")


def _seats(count: int) -> str:
    return "1 seat" if count == 1 else f"{count} seats"


def _value(value: str) -> int:
    try:
        return checked_count("it", int(value))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value!r}") from None
