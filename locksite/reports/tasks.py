"""The tasks that write the reports: one at a time for each day, however they were started."""

from __future__ import annotations

import time
from datetime import date, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Sum
from django.utils import timezone

from distlock.celery import locked_task
from locksite import celery  # noqa: F401  (the app that these are tasks of)
from locksite.reports.models import Report
from locksite.shop.models import Order

#: Seconds that a report takes beside its queries.
TYPESETTING = 0.05


def lock_of(day: str | None = None) -> str:
    """Return the name of the lock of a day's report; by default, of yesterday's."""
    return f"report:{_day(day)}"


# Several machines may have a scheduler, and a scheduler may catch up on what it has missed: while
# one report is queued no second one is, and while one is written the next one waits in its queue.
@locked_task(
    bind=True,
    lock=lock_of,
    queueing_lock=lock_of,
    queueing_using="queue" if "queue" in settings.DISTLOCK else "default",
    busy_delay=0.1,
    busy_delay_max=2,
)
def nightly_report(self: Any, day: str | None = None) -> int:
    """Write the report of a day (yesterday); returns how many seats were sold until its end."""
    return write_report(self.lock, _day(day))


@locked_task(bind=True, lock=lock_of, busy_delay=0.1, busy_delay_max=2)
def rebuild_report(self: Any, day: str | None = None) -> int:
    """Write a report again, as often as it is asked for."""
    return write_report(self.lock, _day(day))


def write_report(lock: Any, day: date) -> int:
    """Count what was sold until the end of a day, under the day's lock."""
    report, _ = Report.objects.get_or_create(day=day)
    sales = Order.objects.filter(created_at__date__lte=day)
    sums = sales.aggregate(orders=Count("pk"), seats=Sum("quantity", default=0))
    time.sleep(TYPESETTING)
    # Whoever has the lock by now has a greater token, and has written already or will.
    Report.objects.filter(pk=report.pk).fenced_update(
        lock.token, orders=sums["orders"], seats=sums["seats"], built=report.built + 1
    )
    return int(sums["seats"])


def _day(day: str | None) -> date:
    return timezone.localdate() - timedelta(days=1) if day is None else date.fromisoformat(day)
