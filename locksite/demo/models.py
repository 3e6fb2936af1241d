"""What the demo's processes write: a counter without any protection, and a log of who held when."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Counter(models.Model):
    """A number that several processes add to: read, wait, write."""

    value = models.PositiveIntegerField(default=0)


class Entry(models.Model):
    """Something a client did with a lock, at a time of the database's own clock."""

    class What(models.TextChoices):
        ENTER = "enter"
        WORK = "work"
        LEAVE = "leave"
        DEAD = "dead"  # written by the demo once it has seen the client end

    trace = models.CharField(max_length=32, db_index=True)
    client = models.CharField(max_length=10)
    what = models.CharField(max_length=10, choices=What)
    token = models.BigIntegerField(default=0)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["at", "pk"]
