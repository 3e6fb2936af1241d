"""Semaphores and read/write locks in the list and on their pages, and how one seat is broken."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from django.contrib.admin.models import LogEntry

from distlock import Lock, LockError, locks
from distlock.admin.locks import HoldRef
from distlock.recipes import RWLock, Semaphore
from distlock.records.shared_backend import shared_locks
from distlock.types.lease import Kind, LockKey

HOSTILE = "<b>&amp;\u202e' OR 1"


@pytest.fixture
def local(backend_settings, settings):
    settings.DISTLOCK = backend_settings("local")
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def mailer(local):
    """Three of the five seats are taken, by two holds."""
    first, second = Semaphore("mailer", 5, n=2, description="news"), Semaphore("mailer", 5)
    first.acquire()
    second.acquire()
    yield second
    for _ in range(2):
        with suppress(LockError):  # a test may have broken one
            first.release()


@pytest.fixture
def get(operator, url):
    def text(page, **parameters):
        response = operator.get(url(page), parameters)
        assert response.status_code == 200
        return response.content.decode()

    return text


def refs(kind, name):
    info = shared_locks(locks["default"]).inspect(LockKey("default", kind, name).backend_name)
    return [str(HoldRef.of(info.of(holder))) for holder in info.holders]


def test_the_list_has_a_row_for_each_holder(mailer, get):
    text = get("list")
    assert text.count("3 of 5 seats taken") == 2
    assert "2 seats" in text
    assert "1 seat<" in text
    assert "news" in text


def test_the_list_may_be_of_one_kind(mailer, get):
    with Lock("stock"), RWLock("catalogue").writer():
        everything = get("list")
        assert all(name in everything for name in ("stock", "catalogue", "mailer"))
        text = get("list", kind="rwlock")
        assert "catalogue" in text
        assert "writer" in text
        assert "mailer" not in text
        assert "stock" not in text
        assert "stock" in get("list", kind="lock")


def test_a_card_counts_all_kinds(mailer, get):
    with Lock("stock"):
        assert re.search(r"<dt>Held</dt><dd>2</dd>", get("list"))


def test_a_page_tells_all_holders_of_a_semaphore(mailer, get):
    text = get("lock", backend="default", kind="semaphore", name="mailer")
    assert "3 of 5 seats taken" in text
    assert text.count("Force release…</button>") == 2
    assert str(mailer.token) in text
    assert "--kind=semaphore" in text


@pytest.mark.parametrize("side", ["reader", "writer"])
def test_a_page_tells_readers_from_the_writer(local, get, side):
    with getattr(RWLock("catalogue"), side)():
        text = get("lock", backend="default", kind="rwlock", name="catalogue")
    assert re.search(rf">{side}<", text)


def test_a_lock_and_a_semaphore_of_one_name_have_pages_of_their_own(mailer, get):
    assert "Nobody holds this lock" in get("lock", backend="default", name="mailer")


def test_one_seat_is_broken_and_no_other(mailer, operator, url, sent_events):
    form = {"hold": [refs(Kind.SEMAPHORE, "mailer")[1]]}
    asked = operator.post(url("release"), form).content.decode()
    assert str(mailer.token) in asked
    token = mailer.token
    operator.post(url("release"), {**form, "confirmed": "yes", "reason": "stuck"})
    info = mailer.info()
    assert [holder.seats for holder in info.holders] == [2]
    entry = LogEntry.objects.latest("id")
    assert str(token) in entry.change_message
    assert "semaphore" in entry.object_repr
    operator.post(url("release"), {**form, "confirmed": "yes", "reason": "again"})
    assert mailer.info().taken == 2


def test_the_log_of_a_semaphore_is_not_that_of_a_lock(mailer, operator, url, get):
    form = {"hold": refs(Kind.SEMAPHORE, "mailer")[:1], "confirmed": "yes", "reason": "jammed"}
    operator.post(url("release"), form)
    assert "jammed" in get("lock", backend="default", kind="semaphore", name="mailer")
    assert "jammed" not in get("lock", backend="default", name="mailer")
    entry = LogEntry.objects.latest("id")
    there = operator.get(entry.get_admin_url())
    assert "kind=semaphore" in there["Location"]
    assert "name=mailer" in there["Location"]


def test_a_name_of_any_kind_of_text_is_harmless(local, get):
    with Semaphore(HOSTILE, 2):
        for text in (
            get("list"),
            get("lock", backend="default", kind="semaphore", name=HOSTILE),
        ):
            assert "<b>&amp;" not in text


def test_pages_neither_skip_nor_repeat_kinds_of_one_name(local, get):
    names = [f"n{number:02}" for number in range(30)]
    held = [
        lock for name in names for lock in (Lock(name), Semaphore(name, 2), RWLock(name).reader())
    ]
    for lock in held:
        lock.acquire()
    seen, address = [], ""
    while True:
        text = get("list", **dict(part.split("=", 1) for part in address.split("&") if part))
        seen += re.findall(r"backend=default(?:&amp;kind=(\w+))?&amp;name=(n\d\d)", text)
        following = re.search(r'href="\?([^"]*)" rel="next"', text)
        if not following:
            break
        address = following[1].replace("&amp;", "&").replace("%3A", ":").replace("%2F", "/")
    for lock in held:
        lock.release()
    assert len(seen) == len(set(seen)) == 90


def test_locks_are_listed_though_the_records_cannot_be_read(
    backend_settings, settings, get, monkeypatch
):
    settings.DISTLOCK = backend_settings("sqlite")
    from django.db import connections

    with Lock("stock"):
        with connections["default"].cursor() as cursor:
            cursor.execute("ALTER TABLE database_lock_record RENAME COLUMN session TO other")
        try:
            text = get("list")
        finally:
            with connections["default"].cursor() as cursor:
                cursor.execute("ALTER TABLE database_lock_record RENAME COLUMN other TO session")
    assert "stock" in text
    assert "Semaphores and read/write locks cannot be read" in text
    locks.close_all()
