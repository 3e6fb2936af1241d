"""``manage.py locks progress``: how far work is, live on the terminal, and asking it to end."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from typing import NoReturn

from distlock.commands import output
from distlock.commands.arguments import JSON, YES, option, whole_number
from distlock.commands.exit_codes import NOT_HELD, fail
from distlock.commands.verbs import ASKING, CHANGING, NameVerb, RecipeCommand, SignedVerb, Target
from distlock.recipes.progress import Progress
from distlock.recipes.report import Report, bar
from distlock.supervisor.processes import Interrupted, ended_by_signals
from distlock.types.lease import Kind


def _row(report: Report | None) -> output.Row:
    if report is None:
        return (None,) * 5
    done = f"{report.done:g}" if report.part is None else f"{report.part:.0%}"
    left = report.eta if report.state == "running" else None
    return report.state, done, output.duration(left), report.owner, report.at


def _get(at: Target) -> Report | None:
    return at.ask(lambda: Progress.get(at.name, using=at.using))


def _bar(report: Report) -> str:
    return output.escaped(bar(report, shutil.get_terminal_size().columns))


def _show(at: Target, *, json: bool, **others: object) -> None:
    report = _get(at) or _nobody(at)
    if json:
        output.write_json(at.command, report)
        return
    at.write(_bar(report))
    fields: dict[str, object] = {
        "state": report.state,
        "worker": report.owner,
        "description": output.escaped(report.description) or None,
        "began": report.since,
        "last report": report.at,
        "attempt": report.attempt,
    }
    if report.state == "running" and report.token is not None:
        fields["token"] = report.token
    output.write_fields(at.command, fields.items())


def _nobody(at: Target) -> NoReturn:
    fail(NOT_HELD, f"nobody reports progress as {at!r}")


def _watch(at: Target, **others: object) -> None:
    """Draw the bar anew with each report, until the work has ended; on a terminal in one line."""
    _ = _get(at) or _nobody(at)
    terminal = sys.stdout.isatty()
    before, after = ("\r\x1b[K", "") if terminal else ("", "\n")
    with suppress(Interrupted, KeyboardInterrupt), ended_by_signals():
        _draw(at, before, after)
    if terminal:
        at.write("")


def _draw(at: Target, before: str, after: str) -> None:
    for report in at.recipe(Progress).changes():
        at.command.stdout.write(f"{before}{_bar(report)}", ending=after)
        at.command.stdout.flush()
        if report.state != "running":
            break


def _cancel(
    at: Target,
    *,
    token: int | None,
    interactive: bool,
    signed: dict[str, str],
    **others: object,
) -> None:
    missing = f"no worker reports progress as {at!r}"
    if token is not None:
        missing += f" with token {token}"
    report = _get(at)
    if report is None or report.token is None or token not in (None, report.token):
        fail(NOT_HELD, missing)
    at.write(_bar(report))
    at.confirm(interactive, f"Ask {output.owner(report.owner)} to end it?")
    if not at.ask(lambda: at.recipe(Progress).cancel(report.token, **signed)):
        fail(NOT_HELD, f"{missing} any more; nothing was done")
    at.succeed("Asked to end; it learns of it within seconds.")


_TOKEN = option(
    "--token",
    "Only if this is the token of its worker, as `progress show` prints it.",
    type=whole_number,
)

PROGRESS = RecipeCommand(
    Kind.PROGRESS,
    "Progress of work: list, show, watch it live, ask it to end.",
    lambda alias, name: Progress.get(name, using=alias),
    ("STATE", "DONE", "LEFT", "WORKER", "LAST REPORT"),
    _row,
    {
        "show": NameVerb("Show how far a piece of work is.", _show, (JSON,), CHANGING),
        "watch": NameVerb("Show it live, until the work has ended.", _watch, epilog=CHANGING),
        "cancel": SignedVerb("Ask the worker to end. Asks first.", _cancel, (_TOKEN, YES), ASKING),
    },
    list_help="List the work that reports, or has of late.",
)
