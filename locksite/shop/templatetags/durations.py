"""Filters for durations and times."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils import timezone

register = template.Library()


@register.filter
def seconds(value: float | None) -> str:
    """Return a number of seconds as "0.4 s", "12 s" or "3 min"; nothing for None."""
    if value is None:
        return ""
    if value < 10:
        return f"{max(value, 0):.1f} s"
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


@register.filter
def ago(moment: datetime) -> str:
    """Return how long ago ``moment`` was, in one unit."""
    passed = (timezone.now() - moment).total_seconds()
    if passed < 5:
        return "just now"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= length:
            return f"{passed // length:.0f} {unit} ago"
    return f"{passed:.0f} s ago"
