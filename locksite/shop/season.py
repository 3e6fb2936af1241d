"""The first season's programme, for a shop that has nothing to sell yet."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from decimal import Decimal

from django.utils import timezone

from locksite.shop.models import Event

Poster = Event.Poster

# slug, title, performer, venue, days ahead, hour, price, poster, seats
_PROGRAMME = [
    ("tidelines", "Tidelines", "Mara Quist Trio", "Harbour Hall", 3, 20, "28.00", Poster.REEF, 90),
    ("first-light", "First Light", "Orchestra of the North", "Winter Garden", 6, 19, "46.00",
     Poster.DAWN, 240),
    ("paper-moons", "Paper Moons", "Theatre Lantern", "The Old Printworks", 9, 20, "32.50",
     Poster.NIGHT, 120),
    ("understory", "Understory", "Ines Okafor, solo piano", "Glasshouse 4", 13, 18, "24.00",
     Poster.MOSS, 60),
    ("velvet-static", "Velvet Static", "Nova Harlem", "Club Meridian", 17, 22, "19.00",
     Poster.ORCHID, 150),
    ("kiln", "Kiln", "Compañía Brasa", "Foundry Stage", 21, 20, "38.00", Poster.EMBER, 110),
]  # fmt: skip


def open_season() -> int:
    """Announce the events that are not there yet; returns how many were new."""
    today = timezone.localdate()
    new = 0
    for slug, title, performer, venue, days, hour, price, poster, seats in _PROGRAMME:
        starts_at = datetime.combine(today + timedelta(days=days), time(hour))
        _, created = Event.objects.get_or_create(
            slug=slug,
            defaults={
                "title": title,
                "performer": performer,
                "venue": venue,
                "starts_at": timezone.make_aware(starts_at),
                "price": Decimal(price),
                "poster": poster,
                "seats": seats,
                "seats_left": seats,
            },
        )
        new += created
    return new
