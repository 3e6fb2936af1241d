"""The shop's addresses."""

from __future__ import annotations

from django.urls import path

from locksite.shop import api, views

app_name = "shop"
urlpatterns = [
    path("", views.home, name="home"),
    path("events/<slug:slug>/buy/", views.buy, name="buy"),
    path("orders/<uuid:code>/", views.ticket, name="ticket"),
    path("api/events/", api.events, name="api-events"),
    path("api/events/<slug:slug>/orders/", api.orders, name="api-orders"),
]
