"""The appearance of a progress: its numbers, live, and asking it to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from django.utils.formats import number_format
from django.utils.translation import gettext_lazy as _

from distlock.recipes.cells import Cell, Columns, Facts, Text, state
from distlock.recipes.description import (
    Action,
    Description,
    Detail,
    Live,
    Missing,
    Offer,
    Option,
    Proposal,
    Ref,
    operation,
    signature,
)
from distlock.recipes.progress import Progress
from distlock.recipes.report import Report, bar
from distlock.types.values import escaped, quoted

_STATES = {
    "running": state("running", _("Running"), "held"),
    "done": state("done", _("Done")),
    "failed": state("failed", _("Failed"), "expired"),
    "cancelled": state("cancelled", _("Cancelled"), "expiring"),
    "lost": state("lost", _("Lost"), "expired"),
}


def _state(report: Report) -> Cell:
    if report.cancelling and report.state == "running":
        return state("running", _("Asked to end"), "expiring")
    return _STATES[report.state]


def _share(report: Report) -> Cell:
    """Return a bar, or how many are done if nobody knows of how many."""
    if report.part is None:
        return Cell(_amount(report))
    return Cell(report.part, "bar", _STATES[report.state].style, hint=_amount(report))


def _amount(report: Report) -> str:
    done, total = (number_format(round(each, 1)) for each in (report.done, report.total or 0))
    text = _("%(done)s %(unit)s") if report.total is None else _("%(done)s of %(total)s %(unit)s")
    return text % {"done": done, "total": total, "unit": report.unit}


def _facts(report: Report, ref: Ref) -> Facts | None:
    if report.token != ref.token:
        return None
    return [
        (_("Progress"), _share(report)),
        (_("Doing"), Cell(report.step)),
        (_("Worker"), Cell(report.owner, "owner")),
        (_("Description"), Cell(report.description)),
        (_("Began"), Cell(report.since, "moment")),
        (_("Token"), Cell(report.token, "number")),
    ]


CANCEL: Action[Report] = Action(
    name="cancel",
    permission="distlock.cancel_progress",
    title=_("Ask it to end"),
    button=_("Ask it to end"),
    consequences=lambda report, ref: [
        _("Within some seconds its next report raises Cancelled in the worker."),
        _("Work that no longer reports, or catches the error, goes on."),
    ],
    facts=_facts,
    perform=lambda ref, values: ref.recipe(Progress).cancel(ref.token, **signature(values)),
    log=_("Asked to end: token %(token)d. Reason: %(reason)s"),
    done=_("It was asked to end:"),
)


def _lines(ref: Ref, width: Callable[[], int]) -> Iterator[str]:
    """Return the bar with each report, until the work has ended."""
    if Progress.get(ref.name, using=ref.alias) is None:
        raise Missing(f"nobody reports progress as {ref.exact}")
    for report in ref.recipe(Progress).changes():
        yield escaped(bar(report, width()))
        if report.state != "running":
            break


@operation(
    "Ask the worker to end. Asks first.",
    Option(
        "--token", "Only if this is the token of its worker, as `progress show` prints it.", "whole"
    ),
    asks=True,
)
def _cancelling(ref: Ref, options: dict[str, Any]) -> Proposal:
    token, report = options["token"], Progress.get(ref.name, using=ref.alias)
    missing = f"no worker reports progress as {ref.exact}"
    if token is not None:
        missing += f" with token {token}"
    if report is None or report.token is None or token not in (None, report.token):
        raise Missing(missing)
    question = f"Ask {quoted(str(report.owner))} to end it?"
    done = "Asked to end; it learns of it within seconds."
    return CANCEL.proposal(report, ref.of(report.token), done, missing, question)


class ProgressDescription(Description[Report | None]):
    """Bars that move."""

    list_help = "List the work that reports, or has reported lately."
    show_help = "Show the progress of a piece of work."
    empty = _("Work is listed here while it reports its progress.")
    missing = "nobody reports progress as {}"
    columns: ClassVar[Columns[Report]] = (
        (_("State"), _state),
        (_("Progress"), _share),
        (_("Doing"), lambda one: Cell(one.error or one.step, confidential=bool(one.error))),
        (_("Time left"), lambda one: Cell(one.eta if one.state == "running" else None, "span")),
        (_("Worker"), lambda one: Cell(one.owner, "owner")),
        (_("Last report"), lambda one: Cell(one.at, "age")),
    )
    actions = (CANCEL,)
    live = True
    verbs: ClassVar = {
        "watch": Live("Show it live, until the work has ended.", _lines),
        "cancel": _cancelling,
    }

    def read(self, ref: Ref) -> Report | None:
        """Return the last report; None if there is none."""
        return Progress.get(ref.name, using=ref.alias)

    def detail(self, ref: Ref, report: Report | None) -> Detail:
        """Return all that the worker has reported, and its token, by which it is asked to end."""
        detail = self.page(ref, report)
        token = None if report is None or report.state != "running" else report.token
        return replace(detail, facts=[*detail.facts, (_("Token"), Cell(token, "number"))])

    def page(self, ref: Ref, report: Report | None) -> Detail:
        """Return all that the worker has reported, and a button by which it is asked to end."""
        if report is None:
            return Detail([(_("State"), Cell(_("Nobody reports."), "state"))])
        running = report.state == "running"
        status, share, _doing, left, worker, _age = self.row(report)
        facts = [status, share]
        if running:
            rate = None if report.rate is None else f"{number_format(round(report.rate, 1))}/s"
            facts += [(_("Doing"), Cell(report.step)), (_("Rate"), Cell(rate)), left]
        if report.error:
            facts.append((_("Error"), Cell(report.error, confidential=True)))
        facts += [
            worker,
            (_("Description"), Cell(report.description)),
            (_("Began"), Cell(report.since, "moment")),
            (_("Last report"), Cell(report.at, "moment")),
            (_("Attempt"), Cell(report.attempt, "number")),
        ]
        offers = []
        if running and not report.cancelling and report.token is not None:
            offers = [Offer("cancel", _("Ask it to end…"), ref.of(report.token), danger=True)]
        return Detail(facts, explanation=_explanation(report), offers=offers)


def _explanation(report: Report) -> list[Text]:
    said: dict[str, Text] = {
        "running": _(
            "Its worker is alive. It writes how far it is once a second at most, if there is"
            " something new."
        ),
        "done": _("The work has come to its end."),
        "failed": _("The work has ended with an error."),
        "cancelled": _("The work has ended because it was asked to."),
        "lost": _(
            "Its worker has died, or was cut off for longer than its lease. Its work since"
            " its last report is unknown."
        ),
    }
    return [said[report.state], _("The times are by the clock of the worker’s machine.")]
