"""Filters for names, owners and times. Names may contain anything, so they are escaped."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils import timezone
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext, ngettext, pgettext

from distlock.types.printable import escaped

register = template.Library()


@register.filter
def visible(text: object) -> SafeString:
    """Return text as HTML: unprintable characters are marked, and its direction is isolated."""
    letters = "".join(
        conditional_escape(letter)
        if letter.isprintable()
        else format_html('<span class="dl-control">{}</span>', escaped(letter))
        for letter in str(text)
    )
    return mark_safe(f"<bdi>{letters}</bdi>")  # escaped letter by letter


@register.filter
def command_line(line: str) -> SafeString:
    """Return a command as HTML that wraps between its arguments."""
    return format_html_join(
        " ", '<span class="dl-word">{}</span>', ([word] for word in line.split(" "))
    )


@register.filter
def printable(text: object) -> str:
    """Return plain text in which unprintable characters are escaped, for an attribute."""
    return escaped(str(text))


@register.filter
def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units, as "9 min 5 s"; seconds are rounded down."""
    if seconds is None:
        return ""
    rest = max(int(seconds), 0)
    minutes, hours, days = rest // 60, rest // 3600, rest // 86400
    if days:
        return gettext("%(days)d d %(hours)d h") % {"days": days, "hours": hours % 24}
    if hours:
        return gettext("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes % 60}
    if minutes:
        return gettext("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": rest % 60}
    return gettext("%(seconds)d s") % {"seconds": rest}


@register.filter
def duration_in_words(seconds: int) -> str:
    """Return a duration that is a whole number of one unit, as "5 minutes"."""
    if seconds < 60:
        return ngettext("%d second", "%d seconds", seconds) % seconds
    if seconds < 3600:
        return ngettext("%d minute", "%d minutes", seconds // 60) % (seconds // 60)
    if seconds < 86400:
        return ngettext("%d hour", "%d hours", seconds // 3600) % (seconds // 3600)
    return ngettext("%d day", "%d days", seconds // 86400) % (seconds // 86400)


@register.filter
def timestamp(moment: datetime | None) -> str:
    """Return a time to the second in the current time zone, with its offset from UTC."""
    if moment is None:
        return ""
    local = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return local.isoformat(sep=" ", timespec="seconds")


@register.filter
def milliseconds(value: float) -> str:
    """Return a number of milliseconds with its unit."""
    if value < 1:
        return pgettext("less than a millisecond", "< 1 ms")
    return gettext("%(milliseconds)d ms") % {"milliseconds": round(value)}
