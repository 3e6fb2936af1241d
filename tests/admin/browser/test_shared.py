"""Semaphores and read/write locks in a real browser."""

from __future__ import annotations

from contextlib import suppress

import pytest
from playwright.sync_api import expect

from distlock import LockError
from distlock.conf import locks
from distlock.recipes import RWLock, Semaphore
from tests.admin.browser.looks import LOOKS, released_by

pytestmark = pytest.mark.slow


@pytest.fixture
def held(backend_settings, settings):
    """A semaphore of five seats with three holders, and a writer."""
    settings.DISTLOCK = {**backend_settings("local"), **backend_settings("local", alias="other")}
    seats = [
        Semaphore("mailer", 5, n=n, description=text)
        for n, text in [(2, "newsletter of November"), (1, ""), (1, "reminders")]
    ]
    writer = RWLock("catalogue", using="other", description="import").writer()
    for lock in (*seats, writer):
        lock.acquire()
    yield seats[-1]
    writer.release()
    for seat in seats:
        with suppress(LockError):  # a test may have broken one
            seat.release()
    locks.close_all()


@pytest.mark.parametrize("look", LOOKS)
def test_they_are_listed_beside_locks(visit, held, look):
    visitor = visit(look=look)
    page = visitor.list()
    expect(page.get_by_role("link", name="mailer", exact=True)).to_have_count(3)
    expect(page.locator("tr", has_text="newsletter")).to_contain_text("4 of 5 seats taken, 2 seats")
    expect(page.locator("tr", has_text="catalogue")).to_contain_text("writer")
    visitor.check(f"shared-list-{look}")


@pytest.mark.parametrize("look", LOOKS)
def test_a_page_shows_all_holders_and_breaks_one(visit, held, look):
    visitor = visit(look=look)
    visitor.list("?kind=semaphore").get_by_role("link", name="mailer").first.click()
    page = visitor.page
    expect(page.locator(".dl-holders tbody tr")).to_have_count(3)
    visitor.check(f"shared-lock-{look}")
    page.locator("tr", has_text="reminders").get_by_role("button").click()
    visitor.check(f"shared-release-{look}")
    released_by(visitor)
    expect(page.locator("tr", has_text="reminders")).to_have_count(0)
    expect(page.locator("#dl-holder-title")).to_contain_text("3 of 5 seats taken")
