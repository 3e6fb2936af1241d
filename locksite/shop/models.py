"""What the shop sells, and to whom it was sold."""

from __future__ import annotations

import uuid

from django.db import models
from django.urls import reverse

from distlock.fencing import FencedModel


class Event(FencedModel):
    """An evening with a number of seats.

    ``seats_left`` is written only by :mod:`locksite.shop.sales`, under the event's lock and with
    the fencing token of that hold; whoever changes anything else saves with ``update_fields``.
    """

    class Poster(models.TextChoices):
        DAWN = "dawn"
        REEF = "reef"
        ORCHID = "orchid"
        MOSS = "moss"
        EMBER = "ember"
        NIGHT = "night"

    slug = models.SlugField(unique=True)
    title = models.CharField(max_length=80)
    performer = models.CharField(max_length=80)
    venue = models.CharField(max_length=80)
    starts_at = models.DateTimeField()
    price = models.DecimalField(max_digits=6, decimal_places=2)
    poster = models.CharField(max_length=10, choices=Poster, default=Poster.DAWN)
    seats = models.PositiveIntegerField()
    seats_left = models.PositiveIntegerField()

    class Meta:
        ordering = ["starts_at", "pk"]

    def __str__(self) -> str:
        return self.title

    @property
    def is_scarce(self) -> bool:
        """Whether it is worth saying that few seats are left."""
        return self.seats_left * 5 <= self.seats


class Order(models.Model):
    """Seats that someone has bought, and under which fencing token."""

    class Channel(models.TextChoices):
        WEB = "web"
        API = "api"
        DEMO = "demo"  # bought by the demo's guests

    code = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    event = models.ForeignKey(Event, on_delete=models.CASCADE, related_name="orders")
    buyer = models.CharField(max_length=60)
    quantity = models.PositiveIntegerField()
    channel = models.CharField(max_length=10, choices=Channel, default=Channel.WEB)
    token = models.BigIntegerField(null=True)
    # Until then the seats are only kept; None once they are paid for.
    reserved_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.quantity} × {self.event_id} for {self.buyer}"

    def get_absolute_url(self) -> str:
        return reverse("shop:ticket", args=[self.code])

    @property
    def short_buyer(self) -> str:
        """The buyer's name as strangers may see it: first name and one letter."""
        first, _, last = self.buyer.partition(" ")
        return f"{first} {last.strip()[:1]}." if last.strip() else first
