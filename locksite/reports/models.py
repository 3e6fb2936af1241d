"""What the shop has sold, counted up once a night."""

from __future__ import annotations

from django.db import models

from distlock.fencing import FencedModel


class Report(FencedModel):
    """The sales until the end of a day.

    Written only by :mod:`locksite.reports.tasks`, under the day's lock and with the fencing token
    of that hold. ``built`` counts how often that was done.
    """

    day = models.DateField(unique=True)
    orders = models.PositiveIntegerField(default=0)
    seats = models.PositiveIntegerField(default=0)
    built = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["-day"]

    def __str__(self) -> str:
        return f"{self.day}: {self.seats} seats"
