"""The site's addresses."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("", include("locksite.shop.urls")),
]
