"""``manage.py locks ping``: whether each backend answers, for probes and scripts."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import output
from distlock.commands.arguments import Backends, add_json, name, seconds
from distlock.commands.exit_codes import DONE, FAILED, NOT_HELD, USAGE, epilog, fail
from distlock.commands.recipe_command import ask
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.fan_out import TIMEOUT, ping
from distlock.recipes.election import Election
from distlock.types.owners import current_owner

HELP = (
    "Ask each backend whether it answers, all at once. Nothing is taken or written. With --leads"
    " also ask whether a process of this host leads an election."
)
EPILOG = epilog(DONE, FAILED, USAGE, NOT_HELD, not_held="no process of this host leads")


def add_arguments(parser: CommandParser) -> None:
    only = "Only these backends; all by default."
    parser.add_argument("aliases", nargs="*", metavar="ALIAS", help=only)
    wait = "How long to wait for the answers (%(default)g)."
    parser.add_argument("--timeout", type=seconds, default=TIMEOUT, metavar="SECONDS", help=wait)
    of = "An election in the first ALIAS, or in the default backend."
    parser.add_argument("--leads", type=name, metavar="ELECTION", help=of)
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
    failed = [alias for alias, answer in answers.items() if answer.problem]
    using = aliases[0] if aliases else DEFAULT_ALIAS
    asked = leads if using not in failed else None
    leader = ask(using, Election(asked, using=using).leader) if asked else None
    led = leader is not None and leader.owner.host == current_owner().host
    if json:
        said = {alias: {**one.as_json(), "problem": one.problem} for alias, one in answers.items()}
        election = {"election": {"name": leads, "leads": led}} if leads else {}
        ok = not failed and (led or not leads)
        output.write_json(command, {"ok": ok, "backends": said, **election})
    else:
        for alias, answer in answers.items():
            line = answer.problem or f"answered in {answer.seconds * 1000:.0f} ms"
            command.stdout.write(f"{alias}: {line}")
    if failed:
        fail(FAILED, f"no answer from {', '.join(map(repr, failed))}")
    if leads and not led:
        by = f"{output.owner(leader.owner)} does" if leader else "nobody does"
        fail(NOT_HELD, f"no process of this host leads election {leads!r} on {using!r}; {by}")
