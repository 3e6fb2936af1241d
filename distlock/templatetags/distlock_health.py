"""The health of all backends, for the front page of an admin site: ``{% distlock_health %}``."""

from __future__ import annotations

from typing import Any

from django import template
from django.core.exceptions import ImproperlyConfigured

from distlock.admin.overview import health
from distlock.types.values import escaped

register = template.Library()


@register.inclusion_tag("admin/distlock/_health.html", takes_context=True)
def distlock_health(context: dict[str, Any]) -> dict[str, Any]:
    """Show each backend, and what is wrong there, to users who may see the locks."""
    user, perms = context["request"].user, context.get("perms")
    if not user.has_perm("distlock.view_databaselock"):
        return {}
    try:
        return {"cards": health(), "perms": perms}
    except ImproperlyConfigured as error:
        return {"problem": escaped(str(error)), "perms": perms}
