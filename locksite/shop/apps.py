"""The Django app of the shop."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "locksite.shop"
    label = "shop"
    verbose_name = "Ticket shop"
