"""``manage.py locks ping``: whether each backend answers, for probes and scripts."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import output
from distlock.commands.arguments import Backends, add_json, name, seconds
from distlock.commands.exit_codes import DONE, FAILED, NOT_HELD, USAGE, epilog, fail
from distlock.commands.recipe_command import ask
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.fan_out import TIMEOUT
from distlock.health import ping
from distlock.recipes.election import Election
from distlock.types.owners import current_owner

HELP = (
    "Ask each backend whether it answers, all at once. Nothing is taken or written. With --leads"
    " also ask whether a process of this host leads an election."
)
EPILOG = epilog(DONE, FAILED, USAGE, NOT_HELD, not_held="no process of this host leads")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "aliases", nargs="*", metavar="ALIAS", help="Only these backends; all by default."
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=TIMEOUT,
        metavar="SECONDS",
        help="How long to wait for the answers (%(default)g).",
    )
    parser.add_argument(
        "--leads",
        type=name,
        metavar="ELECTION",
        help="An election in the first ALIAS, or in the default backend.",
    )
    add_json(parser)


def run(
    command: BaseCommand,
    *,
    aliases: Sequence[str],
    timeout: float,
    leads: str | None,
    json: bool,
    **others: object,
) -> None:
    Backends(aliases)  # refuses an alias that there is not
    answers = ping(aliases or locks, timeout)
    rows = {
        alias: {
            "ok": not answer.problem,
            "seconds": round(answer.seconds, 3),
            "problem": answer.problem,
        }
        for alias, answer in answers.items()
    }
    failed = [alias for alias, answer in answers.items() if answer.problem]
    using = aliases[0] if aliases else DEFAULT_ALIAS
    leader = None
    if leads and using not in failed:
        leader = ask(using, Election(leads, using=using).leader)
    led = leader is not None and leader.owner.host == current_owner().host
    if json:
        election = {"election": {"name": leads, "leads": led}} if leads else {}
        ok = not failed and (led or not leads)
        output.write_json(command, {"ok": ok, "backends": rows, **election})
    else:
        for alias, answer in answers.items():
            said = answer.problem or f"answered in {answer.seconds * 1000:.0f} ms"
            command.stdout.write(f"{alias}: {said}")
    if failed:
        fail(FAILED, f"no answer from {', '.join(map(repr, failed))}")
    if leads and not led:
        by = f"{output.owner(leader.owner)} does" if leader else "nobody does"
        fail(NOT_HELD, f"no process of this host leads election {leads!r} on {using!r}; {by}")
