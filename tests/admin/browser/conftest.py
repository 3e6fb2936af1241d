"""A real browser, and locks that other processes hold in two kinds of backends."""

from __future__ import annotations

import time

import pytest
from django.test import override_settings

from distlock.conf import locks
from tests.admin import holders
from tests.admin.browser.looks import BIDI, HOSTILE, LONG, LOOKS
from tests.admin.browsing import Visitor, chromium, served
from tests.children import Child
from tests.databases import ALIASES
from tests.nodes import ROOT


@pytest.fixture(scope="module")
def address(users):
    with (
        override_settings(
            ALLOWED_HOSTS=["127.0.0.1"],
            MIDDLEWARE=[
                *_middleware(),
                "django.middleware.locale.LocaleMiddleware",
                "tests.admin.browsing.policy_middleware",
            ],
        ),
        served() as address,
    ):
        yield address


def _middleware():
    from django.conf import settings

    return settings.MIDDLEWARE


@pytest.fixture(scope="module")
def browser():
    with pytest.MonkeyPatch.context() as patched, chromium() as browser:
        # Playwright's loop runs on this thread, where Django would take it for asyncio's.
        patched.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield browser


@pytest.fixture(scope="module")
def backends(mariadb, zookeeper, nodes):
    """A database and ZooKeeper."""
    mariadb.execute("DELETE FROM database_lock")
    nodes.clear()
    return {
        "default": {
            "BACKEND": "distlock.backends.database.DatabaseBackend",
            "LEASE": 30,
            "OPTIONS": {"database": ALIASES["mariadb"], "idle": 60},
        },
        "zookeeper": {
            "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
            "LOCATION": zookeeper.hosts,
            "OPTIONS": {"root": ROOT, "session_timeout": 20},
        },
    }


@pytest.fixture(scope="module")
def scene(backends):
    """Locks in both, held and waited for by other processes."""
    with override_settings(DISTLOCK=backends):
        children = [
            Child(holders.hold, "default", ["stock:7", "stock:8", LONG, HOSTILE, BIDI], {}),
            Child(holders.hold, "zookeeper", ["feed", "report:7"], {"description": "hourly"}),
        ]
        tokens = [list(map(int, child.line().split())) for child in children]
        waiters = []
        for using, name in [("zookeeper", "feed"), ("zookeeper", "feed"), ("default", "stock:7")]:
            before = len(locks[using].inspect(name).waiters)
            waiters.append(Child(holders.wait_for, using, name))
            waiters[-1].line()
            while len(locks[using].inspect(name).waiters) == before:
                time.sleep(0.02)
        yield {"tokens": tokens, "children": children, "waiters": waiters}
        for child in [*waiters, *children]:
            child.close()
        locks.close_all()


@pytest.fixture(scope="module")
def shared_visitors(browser, address, users):
    """Visitors who come again and again, by user and look."""
    known = {}

    def find(user, look):
        if (user, look) not in known:
            known[user, look] = Visitor(browser, address, users[user], **LOOKS[look])
        return known[user, look]

    yield find
    for visitor in known.values():
        visitor.close()


@pytest.fixture
def visit(shared_visitors, browser, address, scene, users):
    """``visit("operator")``: someone in front of a browser; nothing may be complained about."""
    visitors, own_visitors = [], []

    def come(user="operator", look="light", **options):
        if options:
            own_visitors.append(
                Visitor(browser, address, users[user], **{**LOOKS[look], **options})
            )
            visitors.append(own_visitors[-1])
        else:
            visitors.append(shared_visitors(user, look))
        return visitors[-1]

    yield come
    complaints = [complaint for visitor in visitors for complaint in visitor.complaints]
    for visitor in visitors:
        visitor.complaints.clear()
        visitor.leave()
    for stranger in own_visitors:
        stranger.close()
    assert complaints == []
