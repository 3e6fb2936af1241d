"""Progress: how far work is, live, and asking it to end."""

from __future__ import annotations

from typing import ClassVar

from django.utils.formats import number_format
from django.utils.translation import gettext_lazy as _

from distlock.admin.coordination.pages import (
    Action,
    Cell,
    Columns,
    Detail,
    Facts,
    Offer,
    RecipePages,
    Ref,
    Text,
    signature,
)
from distlock.models import Progress as ProgressModel
from distlock.recipes.progress import Progress
from distlock.recipes.report import Report
from distlock.types.lease import Kind

#: What the states are called, and in which colour.
_STATES: dict[str, tuple[Text, str]] = {
    "running": (_("Running"), "held"),
    "done": (_("Done"), "free"),
    "failed": (_("Failed"), "expired"),
    "cancelled": (_("Cancelled"), "expiring"),
    "lost": (_("Lost"), "expired"),
}


def _state(report: Report) -> Cell:
    if report.cancelling and report.state == "running":
        return Cell(_("Asked to end"), "state", "expiring")
    label, style = _STATES[report.state]
    return Cell(label, "state", style)


def _share(report: Report) -> Cell:
    """Return a bar, or how many are done if nobody knows of how many."""
    if report.part is None:
        return Cell(_amount(report))
    return Cell(report.part, "bar", _STATES[report.state][1], hint=_amount(report))


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
        _("Work that reports nothing any more, or catches the error, goes on."),
    ],
    facts=_facts,
    perform=lambda ref, values: Progress(ref.name, using=ref.alias).cancel(
        ref.token, **signature(values)
    ),
    log=_("Asked to end: token %(token)d. Reason: %(reason)s"),
    done=_("It was asked to end:"),
)


class ProgressPages(RecipePages[Report | None]):
    """Bars that move."""

    kind = Kind.PROGRESS
    model = ProgressModel
    columns: ClassVar[Columns[Report]] = (
        (_("State"), _state),
        (_("Progress"), _share),
        (_("Doing"), lambda one: Cell(one.error or one.step, confidential=bool(one.error))),
        (_("Time left"), lambda one: Cell(one.eta if one.state == "running" else None, "span")),
        (_("Worker"), lambda one: Cell(one.owner, "owner")),
        (_("Last report"), lambda one: Cell(one.at, "age")),
    )
    empty = _("Work is listed here while it reports its progress.")
    actions = (CANCEL,)
    live = True

    def read(self, alias: str, name: str, *, whole: bool) -> Report | None:
        """Return the last report; None if there is none."""
        return Progress.get(name, using=alias)

    def detail(self, alias: str, name: str, report: Report | None) -> Detail:
        """Return all that the worker has reported."""
        if report is None:
            return Detail([(_("State"), Cell(_("Nobody reports."), "state"))])
        running = report.state == "running"
        facts = [(_("State"), _state(report)), (_("Progress"), _share(report))]
        if running:
            rate = None if report.rate is None else f"{number_format(round(report.rate, 1))}/s"
            facts += [
                (_("Doing"), Cell(report.step)),
                (_("Rate"), Cell(rate)),
                (_("Time left"), Cell(report.eta, "span")),
            ]
        if report.error:
            facts.append((_("Error"), Cell(report.error, confidential=True)))
        facts += [
            (_("Worker"), Cell(report.owner, "owner")),
            (_("Description"), Cell(report.description)),
            (_("Began"), Cell(report.since, "moment")),
            (_("Last report"), Cell(report.at, "moment")),
            (_("Attempt"), Cell(report.attempt, "number")),
        ]
        offers = []
        if running and not report.cancelling and report.token is not None:
            ref = Ref(alias, name, report.token)
            offers = [Offer("cancel", _("Ask it to end…"), ref, danger=True)]
        return Detail(facts, explanation=_explanation(report), offers=offers)


def _explanation(report: Report) -> list[Text]:
    said: dict[str, Text] = {
        "running": _(
            "Its worker is alive. It writes how far it is once a second at the most, if there is"
            " something new."
        ),
        "done": _("The work has come to its end."),
        "failed": _("The work has ended with an error."),
        "cancelled": _("The work has ended because it was asked to."),
        "lost": _(
            "Its worker has died, or was cut off for longer than its lease. What it has done since"
            " its last report is not known."
        ),
    }
    return [said[report.state], _("The times are by the clock of the worker’s machine.")]
