"""A shop with one evening on sale, and the site's commands as an operator runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from distlock import locks
from locksite.shop.models import Event

PROJECT = Path(__file__).resolve().parents[2]

Manage = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def shop(backend_settings: Any, settings: Any) -> Iterator[Callable[..., Event]]:
    """``shop(seats)``: put one evening on sale, in a shop whose locks are in its database."""
    settings.DISTLOCK = backend_settings("sqlite")

    used = {"default"}

    def announce(seats: int = 10, *, using: str = "default") -> Event:
        used.add(using)
        return Event.objects.using(using).create(
            slug="recital",
            title="Recital",
            performer="Ines Okafor",
            venue="Glasshouse",
            starts_at=timezone.now(),
            price=Decimal("24.00"),
            seats=seats,
            seats_left=seats,
        )

    yield announce
    locks.close_all()
    for alias in used:
        Event.objects.using(alias).all().delete()


@pytest.fixture
def database_url(server: Any) -> Callable[[str], str]:
    """``database_url(kind)``: the DATABASE_URL of the tests' database of that kind."""

    def url(kind: str) -> str:
        found = server(kind)
        if kind == "sqlite":
            return f"sqlite:///{connections['default'].settings_dict['NAME']}"
        return str(found.url)

    return url


@pytest.fixture
def manage() -> Iterator[Manage]:
    """``manage(*arguments, **environment)``: start ``manage.py``; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in {"DATABASE_URL", "DJANGO_SETTINGS_MODULE", "LOCKS", "ZOOKEEPER", "ETCD"}
        }
        process = subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=PROJECT,
            env={**inherited, "PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
