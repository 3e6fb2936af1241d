"""What the admin's templates draw with: filters for names, owners and times, and the health tag.

Names may contain anything, so they are escaped. Django imports this in every project that has
templates, also where ``django.contrib.admin`` is not installed: so nothing of the admin is imported
before its tag is drawn.
"""

from __future__ import annotations

from typing import Any

from django import template
from django.core.exceptions import ImproperlyConfigured
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext, ngettext, pgettext

from distlock.commands.output import moment
from distlock.types.values import escaped

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
def visible_lines(text: str) -> SafeString:
    """Return lines of text as HTML, each as visible() does."""
    return format_html_join("\n", "{}", ([visible(line)] for line in text.split("\n")))


@register.filter
def command_line(line: str) -> SafeString:
    """Return a command as HTML that wraps between its arguments."""
    return format_html_join(
        " ", '<span class="dl-word">{}</span>', ([word] for word in line.split(" "))
    )


#: For an attribute: plain text in which unprintable characters are escaped.
register.filter("printable", escaped)
#: A time to the second in the current time zone, with its offset from UTC.
register.filter("timestamp", moment)


@register.filter
def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units, as "9 min 5 s"; seconds are rounded down."""
    if seconds is None:
        return ""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        text = gettext("%(days)d d %(hours)d h")
    elif hours:
        text = gettext("%(hours)d h %(minutes)d min")
    elif minutes:
        text = gettext("%(minutes)d min %(seconds)d s")
    else:
        text = gettext("%(seconds)d s")
    return text % {"days": days, "hours": hours, "minutes": minutes, "seconds": rest}


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
def milliseconds(seconds: float) -> str:
    """Return a short time in milliseconds."""
    if seconds < 0.001:
        return pgettext("less than a millisecond", "< 1 ms")
    return gettext("%(milliseconds)d ms") % {"milliseconds": round(seconds * 1000)}


@register.inclusion_tag("admin/distlock/_health.html", takes_context=True)
def distlock_health(context: dict[str, Any]) -> dict[str, Any]:
    """Show each backend, and what is wrong there, to users who may see the locks."""
    from distlock.admin.views import health

    user, perms = context["request"].user, context.get("perms")
    if not user.has_perm("distlock.view_databaselock"):
        return {}
    try:
        return {"cards": health(), "perms": perms}
    except ImproperlyConfigured as error:
        return {"problem": escaped(str(error)), "perms": perms}
