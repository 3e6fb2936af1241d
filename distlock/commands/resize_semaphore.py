"""``manage.py locks resize NAME VALUE``: change for all how many seats a semaphore has."""

from __future__ import annotations

import argparse
from json import dumps

from django.core.management.base import BaseCommand, CommandParser

from distlock.backends.base import BaseBackend
from distlock.commands import output
from distlock.commands.arguments import Backends, add_json, add_name
from distlock.commands.exit_codes import DONE, FAILED, USAGE, epilog, fail
from distlock.conf import DEFAULT_ALIAS
from distlock.recipes.semaphore import Semaphore, checked_count
from distlock.types.lease import LockInfo

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
    parser.add_argument(
        "--using", default=DEFAULT_ALIAS, metavar="ALIAS", help="The backend's alias in DISTLOCK."
    )
    parser.add_argument(
        "--create", action="store_true", help="Set the number of one that nobody uses yet."
    )
    add_json(parser)


def run(
    command: BaseCommand,
    *,
    name: str,
    value: int,
    using: str,
    json: bool,
    create: bool,
    **others: object,
) -> None:
    semaphore = Semaphore(name, using=using)

    def resized(_: BaseBackend) -> list[tuple[int | None, LockInfo]]:
        # Who misspells a name would leave a record that no sweep forgets.
        if not create and not semaphore.info().slots:
            fail(
                FAILED,
                f"Nobody uses a semaphore {output.quoted(name)} on {using}, and nobody has said how"
                " many seats it has. Say --create if the name is right.",
            )
        return [(semaphore.resize(value), semaphore.info())]

    backends = Backends([using])
    for before, info in backends.ask(resized):
        if json:
            known = {"using": using, "name": name, "before": before, "value": value}
            command.stdout.write(dumps({**known, "taken": info.taken}, indent=1))
            continue
        had = "had no number yet" if before is None else f"had {_seats(before)}"
        command.stdout.write(
            f"{output.quoted(name)} on {using} {had}, and has {value} now; {info.taken} taken."
        )
        if info.taken > value:
            command.stdout.write("Seats are granted again when enough of these have been left.")
    backends.finish()


def _seats(count: int) -> str:
    return "1 seat" if count == 1 else f"{count} seats"


def _value(value: str) -> int:
    try:
        return checked_count("it", int(value))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value!r}") from None
