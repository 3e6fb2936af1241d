"""``manage.py locks election``: who leads, who is next, and deciding it by hand."""

from __future__ import annotations

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import output
from distlock.commands.arguments import whole_number
from distlock.commands.confirm import add_yes, confirm
from distlock.commands.exit_codes import NOT_HELD, fail
from distlock.commands.recipe_command import (
    ASKING,
    CHANGING,
    RecipeCommand,
    Show,
    SignedVerb,
    Verb,
    add_name,
    add_shown,
    ask,
)
from distlock.recipes.candidates import Candidate, ElectionInfo, Term
from distlock.recipes.election import Election
from distlock.types.lease import Kind


def _row(info: ElectionInfo) -> output.Row:
    leader = info.leader
    return (
        output.NOTHING if leader is None else output.quoted(leader.name),
        output.owner(None if leader is None else leader.owner),
        output.NOTHING if leader is None else str(leader.term),
        str(len(info.candidates)),
        f"{info.order}: {output.quoted(info.appointed)}" if info.appointed else info.order,
    )


def _candidate(one: Candidate) -> output.Row:
    return (
        output.quoted(one.name),
        "waits" if one.term is None else "leads",
        output.owner(one.owner),
        output.age(one.since),
        str(one.priority),
        output.NOTHING if one.token is None else str(one.token),
        output.data(one.data),
    )


def _history(command: BaseCommand, *, name: str, using: str, json: bool, **others: object) -> None:
    terms = ask(using, lambda: Election(name, using=using).history())
    if json:
        output.write_json(command, {"using": using, "name": name, "history": terms})
    else:
        heading = ("CANDIDATE", "TERM", "OWNER", "FROM", "UNTIL", "ENDED")
        output.write_table(command, heading, map(_term, terms))
    if not terms:
        fail(NOT_HELD, f"nobody has led in election {name!r} on {using!r}")


def _term(term: Term) -> output.Row:
    return (
        output.quoted(term.candidate),
        str(term.term),
        output.owner(term.owner),
        output.moment(term.since),
        output.moment(term.until),
        term.why or "leads",
    )


def _add_appointed(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument("candidate", metavar="CANDIDATE", help="The name of one who stands.")


def _appoint(
    command: BaseCommand,
    *,
    name: str,
    using: str,
    candidate: str,
    reason: str,
    who: str,
    **_: object,
) -> None:
    election = Election(name, using=using)
    info = ask(using, election.info)
    if candidate not in (one.name for one in info.candidates):
        names = ", ".join(output.quoted(one.name) for one in info.candidates)
        fail(NOT_HELD, f"{candidate!r} does not stand; those who stand: {names or 'nobody'}")
    ask(using, lambda: election.appoint(candidate, reason=reason, who=who))
    when = "leads as soon as the leader of now has left" if info.order == "appointed" else "is next"
    command.stdout.write(f"{output.quoted(candidate)} {when}.")


def _add_term(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument(
        "--term",
        type=whole_number,
        required=True,
        help="That of the leader, as `election show` prints it.",
    )
    add_yes(parser)


def _step_down(
    command: BaseCommand,
    *,
    name: str,
    using: str,
    term: int,
    interactive: bool,
    reason: str,
    who: str,
    **others: object,
) -> None:
    election = Election(name, using=using)
    leader = ask(using, election.leader)
    missing = f"nobody leads election {name!r} on {using!r} under term {term}"
    if leader is None or leader.term != term:
        fail(NOT_HELD, missing)
    command.stdout.write(
        f"{output.quoted(leader.name)}, {output.owner(leader.owner)}, leads"
        f" {output.quoted(name)} on {using}. It is told as of a loss; the next candidate"
        " leads once it has resigned."
    )
    confirm(command, interactive, "Ask it to step down?")
    if not ask(using, lambda: election.step_down(term, reason=reason, who=who)):
        fail(NOT_HELD, f"{missing} any more; nothing was done")
    command.stdout.write(command.style.SUCCESS("Asked to step down."))


VERBS = {
    "history": Verb(
        "List who has led, newest first, and why it ended.", add_shown, _history, CHANGING
    ),
    "appoint": SignedVerb("Appoint who is to lead next.", _add_appointed, _appoint, CHANGING),
    "step-down": SignedVerb(
        "Ask the leader of a term to step down. Asks first.", _add_term, _step_down, ASKING
    ),
}

COMMAND = RecipeCommand(
    Kind.ELECTION,
    "Elections: list, show, history, appoint a leader, ask one to step down.",
    lambda alias, name: Election(name, using=alias).info(),
    ("LEADER", "OWNER", "TERM", "CANDIDATES", "ORDER"),
    _row,
    VERBS,
    show=Show(
        "Show who leads, and who stands in which order.",
        lambda info: info.candidates,
        ("CANDIDATE", "STATE", "OWNER", "STANDS FOR", "PRIORITY", "TOKEN", "DATA"),
        _candidate,
        nobody="nobody leads or stands in election",
    ),
    list_help="List the elections, and who leads.",
)
