"""Take the pictures of the admin that the README and docs/admin.md show: docs/admin-*.png.

Run as ``python -m tools.screenshots``; starts a MariaDB, a ZooKeeper and Chromium.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # Playwright's loop runs on the main thread

import django

DOCS = Path(__file__).parent.parent / "docs"
#: Bytes that a picture may have, so that the pages stay light.
LIMIT = 150_000
SIZE = {"width": 1180, "height": 760}

#: name, what goes on, host, process, thread, seconds held, seconds left
ROWS = [
    ("invoice:42", "Celery task billing.charge[8f0c9a1e]", "worker-3", 4121, "MainThread", 12, 24),
    ("import:stock", "nightly import, file 3 of 7", "worker-1", 977, "MainThread", 7460, 7),
    ("order:1071", "POST /orders/1071/pay/", "web-2", 813, "Thread-12", 1, 29),
    ("report:acme:monthly", "GET /reports/acme/monthly/", "web-1", 812, "Thread-9", 75, 21),
    ("search:reindex", "manage.py reindex", "cron-1", 30112, "MainThread", 90011, -420),
]
ROW = """
INSERT INTO database_lock
    (`lock`, description, owner, nonce, host, process, thread, token, lease, renews,
     acquired_at, expires_at)
VALUES ('{0}', '{1}', 'owner-{0}', 'nonce-{0}', '{2}', {3}, '{4}', 1795221409053272 + {3}, 30, TRUE,
    UTC_TIMESTAMP(6) - INTERVAL {5} SECOND, UTC_TIMESTAMP(6) + INTERVAL {6} SECOND)
"""


@contextlib.contextmanager
def scene() -> Iterator[Any]:
    """Locks in a database and in ZooKeeper; yields how to set the rows' clocks anew."""
    from django.test import override_settings

    from tests.databases import ALIASES, SQLite, migrate, publish
    from tests.servers.mariadb import MariaDB
    from tests.servers.zookeeper import ZooKeeper

    publish("default", SQLite().django())
    migrate("default")
    with MariaDB() as database, ZooKeeper() as zookeeper:
        publish(ALIASES["mariadb"], database.django())
        migrate(ALIASES["mariadb"])
        backends = {
            "default": {
                "BACKEND": "distlock.backends.database.DatabaseBackend",
                "OPTIONS": {"database": ALIASES["mariadb"], "idle": 60},
            },
            "zookeeper": {
                "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
                "LOCATION": zookeeper.hosts,
                "OPTIONS": {"session_timeout": 4},
            },
        }

        def set_clocks() -> None:
            database.execute("DELETE FROM database_lock")
            for row in ROWS:
                database.execute(ROW.format(*row))

        with override_settings(DISTLOCK=backends, ALLOWED_HOSTS=["127.0.0.1"]):
            set_clocks()
            line_up("feed:prices", 3)
            line_up("leader", 0)
            yield set_clocks


@contextlib.contextmanager
def coordination() -> Iterator[None]:
    """An election with three candidates, and a queue with something to do."""
    from distlock.recipes import Election, Queue
    from tests.admin.family import stand

    leader = Election("scheduler", "beat-1", priority=1, data={"zone": "a"}, order="succession")
    leader.campaign()
    leader.resign()
    others = [Election("scheduler", f"beat-{one}", order="succession") for one in (2, 3)]
    end = stand(leader, *others)
    letters = Queue("letters", max_deliveries=1)
    letters.resize(10)
    for who in ("ada", "bob", "eve", "dan", "kim", "lea", "max"):
        letters.put({"to": who, "subject": "Your invoice of November"})
    for reason in (
        "SMTPRecipientsRefused: no such mailbox 'ada@example.org'",
        "SMTPRecipientsRefused: no such mailbox 'bob@example.org'",
        "TimeoutError: no answer within 30 s",
    ):
        letters.get().nack(reason=reason)
    try:
        with letters.get():
            yield
    finally:
        end()


def line_up(name: str, waiting: int) -> None:
    """Let a process hold a lock in ZooKeeper, and so many others wait for it."""
    from distlock import locks
    from tests.admin import holders
    from tests.children import Child

    Child(holders.hold, "zookeeper", [name], {"description": "exchange connector"}).line()
    for place in range(waiting):
        Child(holders.wait_for, "zookeeper", name).line()
        while len(locks["zookeeper"].inspect(name).waiters or ()) <= place:
            threading.Event().wait(0.05)


def shoot(browser: Any, address: str, user: Any, set_clocks: Any) -> None:
    """Take all pictures."""
    for scheme in ("light", "dark"):
        with visiting(browser, address, user, scheme) as visitor:
            page = visitor.page
            set_clocks()
            visitor.list()
            picture(page, f"admin-list-{scheme}")
            set_clocks()
            visitor.list("?q=feed").get_by_role("link", name="feed:prices").click()
            picture(page, f"admin-lock-{scheme}")
            set_clocks()
            visitor.list("?q=import")
            page.get_by_role("checkbox", name="Select import:stock").check()
            page.get_by_role("button", name="Force release").click()
            page.get_by_label("Reason").fill("worker-1 hangs since the network change, see OPS-318")
            picture(page, f"admin-release-{scheme}")
    with coordination():
        for scheme in ("light", "dark"):
            with visiting(browser, address, user, scheme) as visitor:
                page = visitor.page
                for kind, name in (("election", "scheduler"), ("queue", "letters")):
                    page.goto(f"/admin/distlock/{kind}/")
                    page.get_by_role("link", name=name).click()
                    page.get_by_role("heading", name=name, exact=True).wait_for()
                    picture(page, f"admin-{kind}-{scheme}")


@contextlib.contextmanager
def visiting(browser: Any, address: str, user: Any, scheme: str) -> Iterator[Any]:
    """Someone at the site, whose navigation is folded."""
    from tests.admin.browsing import Visitor

    visitor = Visitor(browser, address, user, color_scheme=scheme, viewport=SIZE)
    visitor.page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    try:
        yield visitor
    finally:
        visitor.close()


def picture(page: Any, name: str) -> None:
    path = DOCS / f"{name}.png"
    for button in page.locator("#dl-live").all():
        button.wait_for()  # its script shows it
    page.screenshot(path=path, full_page=True)
    size = path.stat().st_size
    print(f"{path.relative_to(DOCS.parent)}: {size / 1000:.0f} kB")
    if size > LIMIT:
        sys.exit(f"{path.name} is larger than {LIMIT / 1000:.0f} kB")


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User

    from tests.admin.browsing import chromium, served

    DOCS.mkdir(exist_ok=True)
    with scene() as set_clocks, served() as address, chromium() as browser:
        user = User.objects.create_superuser("operator")
        shoot(browser, address, user, set_clocks)


if __name__ == "__main__":
    main()
