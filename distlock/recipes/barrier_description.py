"""What barriers look like: who has come, and whether they are broken."""

from __future__ import annotations

from typing import ClassVar

from django.utils.translation import gettext_lazy as _

from distlock.recipes.barrier import Barrier, BarrierInfo, DoubleBarrier
from distlock.recipes.cells import Cell, Columns, state
from distlock.recipes.description import Description, Detail, Ref, Table
from distlock.types.lease import Holder


def _state(report: BarrierInfo) -> Cell:
    if report.broken is not None:
        return state("broken", _("Broken"), "expired")
    return state("waits", _("Waits"), "held") if report.waiting else state("empty", _("Empty"))


#: of those who wait, for whatever
WAITING: Columns[Holder] = (
    (_("Owner"), lambda holder: Cell(holder.owner, "owner")),
    (_("For"), lambda holder: Cell(holder.since, "age")),
    (_("Description"), lambda holder: Cell(holder.description)),
    (_("Token"), lambda holder: Cell(holder.token, "number")),
)


class BarrierDescription(Description[BarrierInfo]):
    """Who waits for whom."""

    help = "Barriers: list, show."
    empty = _("Barriers are listed here once somebody has waited at one.")
    recipe: ClassVar[type[Barrier | DoubleBarrier]] = Barrier
    columns: ClassVar[Columns[BarrierInfo]] = (
        (_("State"), _state),
        (_("Waiting"), lambda report: Cell(len(report.waiting), "number")),
        (_("Parties"), lambda report: Cell(report.parties, "number")),
    )

    def read(self, ref: Ref) -> BarrierInfo:
        """Return who waits or is inside, and whether it is broken."""
        return ref.recipe(self.recipe).info()

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

    help = "Double barriers: list, show."
    recipe = DoubleBarrier
