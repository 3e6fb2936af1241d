"""Names, owners and times as the admin shows them: whatever they contain, they do no harm."""

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
    """Return text in which all that does not print stands out, apart from the text around it."""
    letters = "".join(
        conditional_escape(letter)
        if letter.isprintable()
        else format_html('<span class="dl-control">{}</span>', escaped(letter))
        for letter in str(text)
    )
    return mark_safe(f"<bdi>{letters}</bdi>")  # escaped letter by letter


@register.filter
def words(line: str) -> SafeString:
    """Return a command whose lines are broken between its words, and in one only if it is long."""
    return format_html_join(
        " ", '<span class="dl-word">{}</span>', ([word] for word in line.split(" "))
    )


@register.filter
def plain(text: object) -> str:
    """Return text for an attribute, or for another sentence: what does not print is escaped."""
    return escaped(str(text))


@register.filter
def span(seconds: float | None) -> str:
    """Return a length of time in its two largest units; seconds are rounded down."""
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
def length_of_time(seconds: int) -> str:
    """Return a length of time that is a round number of its unit, in words."""
    if seconds < 60:
        return ngettext("%d second", "%d seconds", seconds) % seconds
    if seconds < 3600:
        return ngettext("%d minute", "%d minutes", seconds // 60) % (seconds // 60)
    if seconds < 86400:
        return ngettext("%d hour", "%d hours", seconds // 3600) % (seconds // 3600)
    return ngettext("%d day", "%d days", seconds // 86400) % (seconds // 86400)


@register.filter
def exact(moment: datetime | None) -> str:
    """Return a time to the second in the current time zone, with its offset from UTC."""
    if moment is None:
        return ""
    local = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return local.isoformat(sep=" ", timespec="seconds")


@register.filter
def milliseconds(value: float) -> str:
    """Return how long an answer took."""
    if value < 1:
        return pgettext("less than a millisecond", "< 1 ms")
    return gettext("%(milliseconds)d ms") % {"milliseconds": round(value)}
