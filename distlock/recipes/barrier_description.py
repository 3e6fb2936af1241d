"""What barriers look like: who has come, and whether they are broken."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils.translation import gettext_lazy as _

from distlock.recipes.barrier import Barrier, BarrierInfo, DoubleBarrier
from distlock.recipes.cells import WAITING, Cell, Columns, state
from distlock.recipes.description import Description, Detail, Ref, Table


def _state(report: BarrierInfo) -> Cell:
    if report.broken is not None:
        return state("broken", _("Broken"), "expired")
    return state("waits", _("Waits"), "held") if report.waiting else state("empty", _("Empty"))


class BarrierDescription(Description[BarrierInfo]):
    """Who waits for whom."""

    empty = _("Barriers are listed here once somebody has waited at one.")
    recipe: ClassVar[Any] = Barrier
    columns: ClassVar[Columns[BarrierInfo]] = (
        (_("State"), _state),
        (_("Waiting"), lambda report: Cell(len(report.waiting), "number")),
        (_("Parties"), lambda report: Cell(report.parties, "number")),
    )

    def detail(self, ref: Ref, report: BarrierInfo) -> Detail:
        """Return who has come."""
        first, *numbers = self.row(report)
        empty = _("Nobody waits.")
        return Detail(
            facts=[first, (_("Why"), Cell(report.broken)), *numbers],
            tables=[Table("waiting", _("Waiting"), WAITING, report.waiting, empty)],
            explanation=[
                _("The parties wait until all of them have come."),
                _("If one of them gives up or dies, it is broken for all of them."),
            ],
        )


class DoubleBarrierDescription(BarrierDescription):
    """The same for those who begin and end together."""

    recipe = DoubleBarrier
