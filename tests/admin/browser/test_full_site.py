"""Every page over a site that is full: all kinds in use, 30,000 locks, 50,000 items, awkward names.

Each page is loaded once in each look, and then seen in windows of several widths.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from django.contrib.auth.models import User
from django.test import override_settings
from django.urls import reverse
from django.utils.http import urlencode
from playwright.sync_api import expect

from distlock import Lock, audit
from distlock.conf import locks
from distlock.recipes import Config, Group, Queue, RWLock, Semaphore
from distlock.types.lease import Kind
from distlock.types.values import MAX_NAME
from tests.admin.browser.looks import BIDI, HOSTILE, LOOKS
from tests.admin.browser.test_flows import ARABIC, WIDTHS
from tests.admin.browser.test_layout import FIRST, fits
from tests.admin.browsing import Visitor
from tests.admin.family import NAME, SCENES
from tests.admin.seeding import copy_recipe, fill_queue, lock_many
from tests.conftest import TABLES_OF_RECORDS
from tests.databases import ALIASES

pytestmark = [pytest.mark.slow, pytest.mark.once]

LOCKS, ITEMS, LETTERS = 30_000, 50_000, 300
TABLES = ["database_lock", *TABLES_OF_RECORDS]
USING = ALIASES["postgresql"]
HEIGHTS = {390: 844, 768: 1024, 1024: 768, 1440: 900}
LOOK = {
    "light": LOOKS["light"],
    "dark": LOOKS["dark"],
    "arabic": ARABIC,
    "no-script": {"java_script_enabled": False},
}
#: Queues, and those who wait for them, have names that are longer than the queue's.
LONG = "long/" + "abcdefghi:" * ((MAX_NAME - 30) // 10)
NAMES = {
    "long": LONG,
    "rtl": "طلب:٤٢/فاتورة",
    "bidi": BIDI.replace("\u202e", "\u05d0").replace("\u2066", "\u05d1"),
    "html": HOSTILE,
    "quotes": "\"'`\" onmouseover='x' \\\"",
    "slashes": "../..//a\\b?c=d&e#f;g",
    "percent": "100%25 %s %(name)s %d",
    "emoji": "🔑👩‍🚀🏳️‍🌈" * 9,
    "braces": "{{ settings.SECRET_KEY }}{% debug %}{0}",
}
#: What people, and those who hold locks, may write besides.
TEXT = f"{HOSTILE} {BIDI} {{{{ x }}}} " * 3
#: What each kind of a recipe calls its directories, if that is not what its addresses say.
DIRECTORIES = {
    "doublebarrier": "double-barrier",
    "countdownlatch": "count-down-latch",
    "ratelimiter": "rate-limiter",
}


@pytest.fixture(scope="module")
def full_site(postgresql):
    """A database with so much in it, held by this process; beside it another backend."""
    postgresql.empty(TABLES)
    entries = {
        "default": {
            "BACKEND": "distlock.backends.database.DatabaseBackend",
            "LEASE": 600,
            "OPTIONS": {"database": USING, "idle": 60},
        },
        "other": {"BACKEND": "distlock.backends.local.LocalBackend"},
    }
    with override_settings(DISTLOCK=entries), ExitStack() as after:
        after.callback(postgresql.empty, TABLES)
        after.callback(locks.close_all)
        for alias in entries:
            lock = Lock("a", using=alias, lease=7200, renew=False, description=f"job {TEXT}"[:255])
            after.enter_context(lock)
        lock_many(USING, "a", NAMES.values())
        lock_many(USING, "a", (f"stock:{number:05}" for number in range(LOCKS)))
        for shared in (Semaphore("seats", 5, n=2), RWLock("catalogue").writer()):
            after.enter_context(shared)
        copy_recipe(USING, "semaphore", "seats", NAMES.values())
        copy_recipe(USING, "rwlock", "catalogue", NAMES.values())
        letters = Queue("letters", max_deliveries=1)
        letters.put_many([{"to": TEXT, "lines": ["x" * 30] * 9}] * 3)
        letters.get().nack(reason=TEXT[:300])
        after.enter_context(letters.get())
        Config("mailer").set({"hosts": ["mx1.example.org"] * 20}, who="ada")
        after.enter_context(Group("workers", "worker-1", data={"queues": ["mail"] * 40}))
        # A barrier stays broken for as long as its object is there.
        scenes = {kind: make() for kind, make in SCENES.items()}
        for kind, scene in scenes.items():
            after.callback(scene.close)
            copy_recipe(USING, DIRECTORIES.get(kind, kind), NAME, NAMES.values())
        fill_queue(USING, "letters", ITEMS, LETTERS)
        for name in ("a", *NAMES.values()):
            audit.record(("default", Kind.LOCK, name), "release", TEXT, who=TEXT)
        postgresql.execute("ANALYZE")
        yield


@pytest.fixture(scope="module")
def chief(users):
    """Someone who may do everything."""
    user = User.objects.create_superuser("chief of all")
    yield user
    user.delete()


def to(page, **query):
    return f"{reverse(f'admin:distlock_{page}')}?{urlencode(query)}"


def one(page, name, **query):
    return to(page, backend="default", name=name, **query)


def pages():
    """Return the addresses of all pages by what they show, lists of locks first."""
    found = {
        "locks": to("heldlock_changelist"),
        "locks-by-age": to("heldlock_changelist", order="age"),
        "locks-found": to("heldlock_changelist", q="stock:29", state="held"),
        "locks-later": to("heldlock_changelist", after="default:0:stock:00100"),
        "semaphores": to("heldlock_changelist", kind="semaphore"),
        "index": reverse("admin:index"),
        "app": reverse("admin:app_list", args=["distlock"]),
        "lock": one("heldlock_lock", "stock:00007"),
        "lock-logged": one("heldlock_lock", "a"),
        "lock-free": one("heldlock_lock", "nobody has it"),
        "semaphore": one("heldlock_lock", "seats", kind="semaphore"),
        "rwlock": one("heldlock_lock", NAMES["html"], kind="rwlock"),
    }
    found |= {f"lock-{what}": one("heldlock_lock", name) for what, name in NAMES.items()}
    for kind, (what, name) in zip(SCENES, [*NAMES.items(), *NAMES.items()], strict=False):
        found[f"{kind}-list"] = to(f"{kind}_changelist")
        found[f"{kind}-one"] = one(f"{kind}_one", NAME)
        found[f"{kind}-{what}"] = one(f"{kind}_one", name)
    for state in ("dead", "delivered", "ready"):
        found[f"letters-{state}"] = one("queue_one", "letters", state=state)
    found["config-large"] = one("config_one", "mailer")
    found["group-large"] = one("group_one", "workers")
    found["letters-found"] = one("queue_one", "letters", state="dead", q="30 s")
    found["letters-later"] = one("queue_one", "letters", state="ready", after=ITEMS // 2)
    found |= {f"item-{number}": one("queue_one", "letters", item=number) for number in (1, 2, 3)}
    return found


def digest(postgresql):
    """Return what all tables say, but for the renewals of this process."""
    texts = {
        "database_lock": "to_jsonb(t) - CASE WHEN renews THEN 'expires_at' ELSE '' END",
        "database_lock_session": "to_jsonb(t) - 'expires_at'",
    }
    return {
        table: postgresql.execute(
            f"SELECT COUNT(*), md5(string_agg(line, '' ORDER BY line)) FROM"
            f" (SELECT ({texts.get(table, 'to_jsonb(t)')})::text AS line FROM {table} t) lines"
        )
        for table in TABLES
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize("look", LOOK)
def test_every_page_fits_is_accessible_and_changes_nothing(
    full_site, postgresql, browser, address, chief, look
):
    """In the dark the colours count, in other looks the widths; all else is the same in each."""
    before = digest(postgresql)
    visitor, wrong = Visitor(browser, address, chief, **LOOK[look]), []
    for place, (what, page) in enumerate(pages().items()):
        response = visitor.page.goto(page)
        assert response.status == 200, (what, response.status)
        if what.startswith(("locks", "semaphores")):
            expect(visitor.page.locator(".dl-table tbody tr")).not_to_have_count(0)
        pictured = WIDTHS[place % len(WIDTHS)]  # each page in one of them, each look
        for width in [pictured] if look == "dark" else WIDTHS:
            visitor.page.set_viewport_size({"width": width, "height": HEIGHTS[width]})
            wide, tall = fits(visitor.page)
            if wide or (tall and width >= 768):
                wrong.append((what, width, wide, tall))
            # What was searched for is below links to other lists.
            if what in ("locks", "locks-by-age", "locks-later") and width >= 768:
                top = visitor.page.evaluate(FIRST)
                if top >= HEIGHTS[width] / 2:
                    wrong.append((what, width, "first lock at", top))
            if width == pictured:
                picture = f"full-{look}-{width}-{what}"
                try:
                    if look in ("light", "dark"):
                        visitor.check(picture)
                    else:  # axe is a script; in Arabic, test_flows.py runs it
                        visitor.shoot(picture)
                except AssertionError as error:
                    wrong.append((what, width, str(error)))
    complaints = visitor.complaints
    visitor.close()
    assert not wrong, "\n".join(map(str, wrong))
    assert complaints == []
    assert digest(postgresql) == before
