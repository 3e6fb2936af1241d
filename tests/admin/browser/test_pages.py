"""The panel's pages in a real browser: what they show, and what they do."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from playwright.sync_api import expect

from distlock.conf import locks
from tests.admin import holders
from tests.admin.browser.looks import (
    BIDI,
    HOSTILE,
    LONG,
    LOOKS,
    LOOKS_AND_SLOW_PHONE,
    released_by,
    reload_until,
)
from tests.databases import ALIASES


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_the_list_shows_the_locks_of_both_backends(visit, scene, look):
    visitor = visit(look=look)
    page = visitor.list()
    names = visitor.names()
    assert {"stock:7", "stock:8", "feed", "report:7"} <= set(names)
    assert {HOSTILE, LONG, "order:\\u202e24:redro\\u2066"} <= set(names)
    row = page.locator("tr", has=page.get_by_role("link", name="feed", exact=True))
    expect(row).to_contain_text("Held")
    expect(row).to_contain_text(str(scene["children"][1].pid))
    expect(row).to_contain_text("hourly")
    expect(row.locator('[data-label="Waiters"]')).to_have_text("2")
    row = page.locator("tr", has=page.get_by_role("link", name="stock:7"))
    expect(row).to_contain_text("Celery task shop.restock[7f3a]")
    waiters = row.locator('[data-label="Waiters"]')
    reload_until(lambda: waiters.inner_text() == "1", page)
    expect(row).to_contain_text(str(scene["tokens"][0][0]))
    expect(page.locator(".dl-card")).to_have_count(2)
    visitor.check(f"list-{look}")


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_the_page_of_a_lock_shows_its_holder_and_who_waits_in_order(visit, scene, look):
    visitor = visit(look=look)
    visitor.list("?q=feed").get_by_role("link", name="feed", exact=True).click()
    page = visitor.page
    expect(page.get_by_role("heading", level=1)).to_have_text("feed")
    line = page.locator(".dl-waiter-list li")
    expect(line).to_contain_text([str(waiter.pid) for waiter in scene["waiters"][:2]])
    token = scene["tokens"][1][0]
    command = f"manage.py locks release --using=zookeeper --token={token} feed"
    expect(page.locator(".dl-code").first).to_have_text(command)
    expect(page.locator(".dl-explanation")).to_contain_text("as long as the session of its process")
    visitor.check(f"lock-{look}")


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS_AND_SLOW_PHONE)
def test_the_page_that_asks_before_releasing(visit, look):
    visitor = visit(look=look)
    page = visitor.list("?q=stock:")
    for tick in page.locator('input[name="hold"]').all():
        tick.check()
    page.get_by_role("button", name="Force release").click()
    expect(page.get_by_role("heading", name="These 2 holds will be broken")).to_be_visible()
    visitor.check(f"release-{look}")
    page.get_by_role("button", name=re.compile("^Break")).click()
    expect(page.get_by_label("Reason")).to_have_accessible_description(
        re.compile("written to the log")
    )
    expect(page.get_by_text("Please say why.")).to_be_visible()
    visitor.check(f"release-without-reason-{look}")


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS_AND_SLOW_PHONE)
def test_the_page_that_asks_before_sweeping(visit, look):
    visitor = visit(look=look)
    visitor.list().get_by_role("button", name="Sweep").click()
    expect(visitor.page.get_by_role("button", name="Sweep now")).to_be_visible()
    visitor.check(f"sweep-{look}")
    visitor.page.get_by_role("button", name="Sweep now").click()
    expect(visitor.page.locator(".messagelist")).to_contain_text("Swept zookeeper: 0 expired")
    visitor.check(f"swept-{look}")


@pytest.mark.slow
def test_filters(visit):
    visitor = visit()
    page = visitor.list()
    page.get_by_label("Search").fill("STOCK:")
    page.get_by_role("button", name="Filter").click()
    visitor.sees("stock:7", "stock:8")
    page.get_by_label("Backend", exact=True).select_option("zookeeper")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("No such lock")).to_be_visible()
    visitor.check("list-nothing-found")
    page.get_by_role("link", name="Clear").click()
    expect(page.get_by_role("link", name="feed", exact=True)).to_be_visible()
    assert len(visitor.names()) == 7


@pytest.mark.slow
def test_a_release_reaches_the_holder(visit, child):
    """From the click to LockLost in the process that held the lock."""
    holder = child(holders.hold_until_lost, "default", "hung", {"lease": 12})
    token = int(holder.line())
    visitor = visit()
    page = visitor.list("?q=hung")
    page.get_by_role("checkbox", name="Select hung").check()
    expect(page.get_by_role("status").filter(has_text="1 lock selected")).to_be_visible()
    page.get_by_role("button", name="Force release").click()
    expect(page.locator(".dl-danger tbody")).to_contain_text(str(token))
    released_by(visitor)
    expect(page.locator(".messagelist .success")).to_have_text("1 lock was released: hung")
    visitor.check("released")
    while (line := _tell(holder)) is None:
        pass
    assert line == f"lost {token} False"
    page.goto("/admin/distlock/heldlock/lock/?backend=default&name=hung")
    expect(page.locator(".dl-log")).to_contain_text("the test says so")
    visitor.check("lock-free")


def _tell(child):
    """Let the child look whether it has lost its lock; return its line, if any."""
    with suppress(BrokenPipeError):  # it has said so, and ended
        child.tell()
    try:
        return child.line(timeout=0.1)
    except AssertionError as error:
        if "said nothing" in str(error):
            return None
        raise


@pytest.mark.slow
def test_a_release_reaches_a_holder_in_zookeeper(visit, child):
    holder = child(holders.hold_until_lost, "zookeeper", "stuck", {})
    token = int(holder.line())
    visitor = visit()
    page = visitor.list("?q=stuck")
    page.get_by_role("link", name="stuck").click()
    page.get_by_role("button", name="Force release").click()
    released_by(visitor)
    expect(page.locator(".messagelist .success")).to_have_text("1 lock was released: stuck")
    while (line := _tell(holder)) is None:
        pass
    assert line == f"lost {token} False"


@pytest.mark.slow
def test_a_token_that_changed_between_page_and_click(visit, child):
    first = child(holders.hold, "default", ["changing"], {})
    first.line()
    visitor = visit()
    page = visitor.list("?q=changing")
    page.get_by_role("checkbox", name="Select changing").check()
    page.get_by_role("button", name="Force release").click()
    first.tell()
    first.kill()
    locks["default"].force_release("changing", locks["default"].inspect("changing").token)
    second = child(holders.hold, "default", ["changing"], {})
    token = int(second.line())
    released_by(visitor)
    expect(page.locator(".messagelist .warning")).to_contain_text("1 lock was not released")
    assert locks["default"].inspect("changing").token == token
    visitor.check("not-released")


@pytest.mark.slow
def test_a_viewer_is_offered_nothing_to_do(visit):
    visitor = visit("viewer")
    page = visitor.list()
    assert "stock:7" in visitor.names()
    expect(page.get_by_role("checkbox")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("release|Sweep"))).to_have_count(0)
    visitor.check("list-viewer")
    page.get_by_role("link", name="stock:7").click()
    expect(page.get_by_role("button", name=re.compile("release"))).to_have_count(0)
    visitor.check("lock-viewer")


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS_AND_SLOW_PHONE)
def test_a_backend_that_is_down(visit, backends, postgresql, settings, look):
    down = {
        "BACKEND": "distlock.backends.database.DatabaseBackend",
        "OPTIONS": {"database": ALIASES["postgresql"]},
    }
    from tests.databases import moved

    settings.DISTLOCK = {"default": backends["default"], "archive": down}
    visitor = visit(look=look)
    visitor.list()
    with moved("postgresql", 1):
        page = visitor.list()
        card = page.locator(".dl-card", has_text="archive")
        expect(card).to_contain_text("Cannot be asked")
        expect(card).to_contain_text("The locks held there are unknown")
        expect(card).to_contain_text("Last known")
        assert "stock:7" in visitor.names()
        visitor.check(f"down-{look}")
        page.goto("/admin/distlock/heldlock/lock/?backend=archive&name=x")
        expect(page.locator(".dl-holder")).to_contain_text("Cannot be asked")
        visitor.check(f"lock-down-{look}")


@pytest.mark.slow
def test_pages_about_names_from_anywhere(visit):
    visitor = visit()
    visitor.list()
    names = visitor.names()
    for name in (HOSTILE, BIDI, LONG):
        visitor.list()
        number = [
            escaped.replace("\\u202e", "\u202e").replace("\\u2066", "\u2066") for escaped in names
        ].index(name)
        visitor.page.locator(".dl-table tbody .dl-name a").nth(number).click()
        expect(visitor.page.get_by_role("heading", level=1)).to_be_visible()
        visitor.check(f"hostile-{number}")
    visitor.list()
    for tick in visitor.page.locator('input[name="hold"]').all():
        tick.check()
    visitor.page.get_by_role("button", name="Force release").click()
    visitor.check("hostile-release")
