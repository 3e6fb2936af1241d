"""What rate limiters look like: how many permits count now, and who waits for one."""

from __future__ import annotations

from typing import ClassVar

from django.utils.translation import gettext_lazy as _

from distlock.recipes.barrier_description import WAITING
from distlock.recipes.cells import Cell, Columns
from distlock.recipes.description import Description, Detail, Ref, Table
from distlock.recipes.rate_limiter import RateInfo, RateLimiter


class RateLimiterDescription(Description[RateInfo]):
    """How many permits are taken, of how many, and who waits."""

    help = "Rate limiters: list, show."
    empty = _("Rate limiters are listed here once one has granted a permit.")
    columns: ClassVar[Columns[RateInfo]] = (
        (_("Taken"), lambda report: Cell(report.taken, "number")),
        (_("Permits"), lambda report: Cell(report.permits, "number")),
        (_("Period"), lambda report: Cell(report.period, "span")),
        (_("Waiting"), lambda report: Cell(len(report.waiting), "number")),
    )

    def read(self, ref: Ref) -> RateInfo:
        """Return how many permits count for this process, and who waits."""
        return RateLimiter(ref.name, 1, 1, using=ref.alias).info()

    def detail(self, ref: Ref, report: RateInfo) -> Detail:
        """Return the same."""
        return Detail(
            self.row(report),
            [Table("waiting", _("Waiting"), WAITING, report.waiting, _("Nobody waits."))],
            [_("Each process counts a permit for a full period after it first saw it.")],
        )
