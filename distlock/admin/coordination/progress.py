"""Progress: how far work is, live, and asking it to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from distlock.admin.coordination.cells import Cell, Detail, Offer, Ref, TableRow, Text
from distlock.admin.coordination.recipe_pages import Action, Done, RecipePages, signature
from distlock.models import Progress as ProgressModel
from distlock.recipes.progress import Progress
from distlock.recipes.report import Report
from distlock.types.lease import Kind

#: What the states are called, and in which colour.
_STATES: dict[str, tuple[Text, str]] = {
    "running": (gettext_lazy("Running"), "held"),
    "done": (gettext_lazy("Done"), "free"),
    "failed": (gettext_lazy("Failed"), "expired"),
    "cancelled": (gettext_lazy("Cancelled"), "expiring"),
    "lost": (gettext_lazy("Lost"), "expired"),
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
    done = number_format(round(report.done, 1))
    values = {"done": done, "unit": report.unit}
    if report.total is None:
        return _("%(done)s %(unit)s") % values
    return _("%(done)s of %(total)s %(unit)s") % {
        **values,
        "total": number_format(round(report.total, 1)),
    }


def _facts(report: Report | None, ref: Ref) -> Sequence[tuple[Text, Cell]] | None:
    if report is None or report.token is None or report.token != ref.token:
        return None
    return [
        (_("Progress"), _share(report)),
        (_("Doing"), Cell(report.step)),
        (_("Worker"), Cell(report.owner, "owner")),
        (_("Description"), Cell(report.description)),
        (_("Began"), Cell(report.since, "moment")),
        (_("Token"), Cell(report.token, "number")),
    ]


def _cancel(ref: Ref, values: dict[str, Any]) -> Done | None:
    if not Progress(ref.name, using=ref.alias).cancel(ref.token, **signature(values)):
        return None
    return Done(gettext_lazy("Asked to end: token %(token)d. Reason: %(reason)s"))


CANCEL: Action[Report | None] = Action(
    name="cancel",
    permission="distlock.cancel_progress",
    title=gettext_lazy("Ask it to end"),
    button=gettext_lazy("Ask it to end"),
    consequences=lambda report, ref: [
        _("Within some seconds its next report raises Cancelled in the worker."),
        _("Work that reports nothing any more, or catches the error, goes on."),
    ],
    facts=_facts,
    perform=_cancel,
    done=gettext_lazy("It was asked to end:"),
)


class ProgressPages(RecipePages[Report | None]):
    """Bars that move."""

    kind = Kind.PROGRESS
    model = ProgressModel
    columns = (
        gettext_lazy("State"),
        gettext_lazy("Progress"),
        gettext_lazy("Doing"),
        gettext_lazy("Time left"),
        gettext_lazy("Worker"),
        gettext_lazy("Last report"),
    )
    empty = gettext_lazy("Work is listed here while it reports its progress.")
    actions = (CANCEL,)
    live = True

    def read(self, alias: str, name: str, *, whole: bool) -> Report | None:
        """Return the last report; None if there is none."""
        return Progress.get(name, using=alias)

    def row(self, report: Report | None) -> TableRow:
        """Return a bar and who moves it."""
        if report is None:
            return TableRow([Cell(None) for _column in self.columns])
        running = report.state == "running"
        return TableRow(
            [
                _state(report),
                _share(report),
                Cell(report.error or report.step, confidential=bool(report.error)),
                Cell(report.eta if running else None, "span"),
                Cell(report.owner, "owner"),
                Cell(report.at, "age"),
            ]
        )

    def detail(self, alias: str, name: str, report: Report | None) -> Detail:
        """Return all that the worker has reported."""
        if report is None:
            return Detail([(_("State"), Cell(_("Nobody reports."), "state"))])
        running = report.state == "running"
        facts: list[tuple[Text, Cell]] = [
            (_("State"), _state(report)),
            (_("Progress"), _share(report)),
        ]
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
