"""``manage.py release_expired_orders``: put seats on sale again that nobody paid for in time."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from distlock.commands import LockedCommand
from locksite.shop import sales

#: No event's slug.
ALL = "*"


class Command(LockedCommand):
    """For cron, every minute, on every machine: it runs on one of them.

    The clocks of the machines differ by some seconds, and the work takes less. So the lock stays
    reserved for half a minute; otherwise a machine that starts late would do the work again.
    """

    help = "Takes back the orders that were reserved and not confirmed in time."
    lock_name = "release_expired_orders:{event}"
    lock_at_least = 30

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--event", metavar="SLUG", default=ALL, help="Only of this event.")

    def handle(self, *, event: str, verbosity: int, **options: Any) -> None:
        late = sales.expired()
        if event != ALL:
            late = late.filter(event__slug=event)
        seats = 0
        for order in late.order_by("pk"):
            self.lock.check()
            if sales.cancel(order, among=late):
                seats += order.quantity
        if verbosity:
            self.stdout.write(f"{seats} seats are on sale again.")
