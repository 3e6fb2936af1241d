"""``manage.py locks progress``: how far work is, live on the terminal, and asking it to end."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import output
from distlock.commands.arguments import whole_number
from distlock.commands.confirm import add_yes, confirm
from distlock.commands.exit_codes import NOT_HELD, fail
from distlock.commands.recipe_command import (
    ASKING,
    CHANGING,
    RecipeCommand,
    SignedVerb,
    Verb,
    add_name,
    add_shown,
    ask,
)
from distlock.recipes.progress import Progress
from distlock.recipes.report import Report, bar
from distlock.supervisor.signal_handling import Interrupted, ended_by_signals
from distlock.types.lease import Kind


def _row(report: Report | None) -> output.Row:
    if report is None:
        return (output.NOTHING,) * 5
    done = f"{report.done:g}" if report.part is None else f"{report.part:.0%}"
    left = report.eta if report.state == "running" else None
    return (
        report.state,
        done,
        output.duration(left),
        output.owner(report.owner),
        output.moment(report.at),
    )


def _show(command: BaseCommand, *, name: str, using: str, json: bool, **others: object) -> None:
    report = ask(using, lambda: Progress.get(name, using=using))
    if report is None:
        fail(NOT_HELD, f"nobody reports progress as {name!r} on {using!r}")
    if json:
        output.write_json(command, report)
        return
    command.stdout.write(output.escaped(bar(report, _width())))
    fields = {
        "state": report.state,
        "worker": output.owner(report.owner),
        "description": output.escaped(report.description) or output.NOTHING,
        "began": output.moment(report.since),
        "last report": output.moment(report.at),
        "attempt": str(report.attempt),
    }
    if report.state == "running" and report.token is not None:
        fields["token"] = str(report.token)
    output.write_fields(command, fields.items())


def _watch(command: BaseCommand, *, name: str, using: str, **others: object) -> None:
    """Draw the bar anew with each report, until the work has ended; on a terminal in one line."""
    if ask(using, lambda: Progress.get(name, using=using)) is None:
        fail(NOT_HELD, f"nobody reports progress as {name!r} on {using!r}")
    terminal = sys.stdout.isatty()
    with suppress(Interrupted, KeyboardInterrupt), ended_by_signals():
        _draw(command, name, using, terminal)
    if terminal:
        command.stdout.write("")


def _draw(command: BaseCommand, name: str, using: str, terminal: bool) -> None:
    for report in Progress(name, using=using).changes():
        line = output.escaped(bar(report, _width()))
        command.stdout.write(
            f"\r\x1b[K{line}" if terminal else line, ending="" if terminal else "\n"
        )
        command.stdout.flush()
        if report.state != "running":
            break


def _width() -> int:
    return shutil.get_terminal_size().columns


def _add_cancelled(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument(
        "--token",
        type=whole_number,
        help="Only if this is the token of its worker, as `progress show` prints it.",
    )
    add_yes(parser)


def _cancel(
    command: BaseCommand,
    *,
    name: str,
    using: str,
    token: int | None,
    interactive: bool,
    reason: str,
    who: str,
    **others: object,
) -> None:
    missing = f"no worker reports progress as {name!r} on {using!r}"
    if token is not None:
        missing += f" with token {token}"
    report = ask(using, lambda: Progress.get(name, using=using))
    if report is None or report.token is None or token not in (None, report.token):
        fail(NOT_HELD, missing)
    command.stdout.write(output.escaped(bar(report, _width())))
    confirm(command, interactive, f"Ask {output.owner(report.owner)} to end it?")
    progress = Progress(name, using=using)
    if not ask(using, lambda: progress.cancel(report.token, reason=reason, who=who)):
        fail(NOT_HELD, f"{missing} any more; nothing was done")
    command.stdout.write(command.style.SUCCESS("Asked to end; it learns of it within seconds."))


VERBS = {
    "show": Verb("Show how far a piece of work is.", add_shown, _show, CHANGING),
    "watch": Verb("Show it live, until the work has ended.", add_name, _watch, CHANGING),
    "cancel": SignedVerb("Ask the worker to end. Asks first.", _add_cancelled, _cancel, ASKING),
}

COMMAND = RecipeCommand(
    Kind.PROGRESS,
    "Progress of work: list, show, watch it live, ask it to end.",
    lambda alias, name: Progress.get(name, using=alias),
    ("STATE", "DONE", "LEFT", "WORKER", "LAST REPORT"),
    _row,
    VERBS,
    list_help="List the work that reports, or has of late.",
)
