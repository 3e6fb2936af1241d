"""Rows that are protected by fencing tokens."""

from __future__ import annotations

from django.db import models

from distlock.fencing import FencedModel


class Event(models.Model):
    open = models.BooleanField(default=True)


class Seat(FencedModel):
    event = models.ForeignKey(Event, models.CASCADE, related_name="seats", null=True)
    neighbour = models.ForeignKey("self", models.CASCADE, null=True)
    number = models.IntegerField(default=0)
    state = models.CharField(max_length=10, default="free")


class BoxSeat(Seat):
    """The fence is in its parent's table."""

    box = models.CharField(max_length=10, default="")
