"""The ways through the panel: from the front page to a lock, to its holder, and through a break."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from distlock.conf import locks
from tests.admin import holders
from tests.admin.browser.looks import LOOKS, released_by, reload_until
from tests.contract.watch import eventually

RED = "rgb(186, 33, 33)"
WIDTHS = [390, 768, 1024, 1440]
#: colours are the same in each width
LOOKS_AND_WIDTHS = [
    *[("light", width) for width in WIDTHS],
    ("arabic", 390),
    ("dark", 1440),
]
ARABIC = {"locale": "ar-EG"}


def background(button):
    return button.evaluate("button => getComputedStyle(button).backgroundColor")


@pytest.mark.parametrize("look", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_front_page_shows_the_health_of_each_backend(visit, look):
    visitor = visit(look=look)
    page = visitor.page
    page.goto("/admin/")
    health = page.get_by_role("region", name="Locks")
    expect(health.get_by_role("listitem")).to_have_count(2)
    expect(health).to_contain_text("No lease ends soon or has expired.")
    visitor.check(f"index-{look}")
    health.get_by_role("link", name="zookeeper").click()
    visitor.sees("feed", "report:7")


def test_nothing_is_red_while_nothing_is_selected(visit):
    visitor = visit()
    page = visitor.list("?q=stock:")
    button = page.get_by_role("button", name="Force release")
    assert background(button) != RED
    page.get_by_role("checkbox", name="Select stock:7").check()
    assert background(button) == RED
    page.get_by_role("link", name="stock:7").click()
    assert background(page.get_by_role("button", name="Force release")) != RED


def test_a_holder_leads_to_all_that_its_process_holds(visit, scene):
    visitor = visit()
    page = visitor.list("?q=report")
    page.get_by_title("Holds and waits of this process").click()
    visitor.sees("feed", "report:7")
    assert page.get_by_label("Search").input_value().endswith(f":{scene['children'][1].pid}:")


def test_one_stays_on_the_lock_that_was_broken(visit, child):
    old = child(holders.hold, "default", ["flow"], {"lease": 600})
    token = old.line()
    new = child(holders.wait_for, "default", "flow")
    new.line()
    visitor = visit()
    eventually(lambda: locks["default"].inspect("flow").waiters)
    page = visitor.page
    following = page.get_by_text("is next and gets the lock at once.")

    def ask():
        page.goto("/admin/distlock/heldlock/lock/?backend=default&name=flow")
        reload_until(lambda: page.locator(".dl-waiter-list li").count() == 1, page)
        page.get_by_role("button", name="Force release").click()
        expect(page.get_by_label("Reason")).to_be_visible()
        return following.count()

    eventually(ask)  # the waiter is not shown in every moment
    expect(following).to_contain_text(str(new.pid))
    visitor.check("break-ask")
    released_by(visitor)
    assert new.line() == "got it"
    broken = page.get_by_role("region", name="Broken")
    expect(broken).to_be_visible()
    page.reload()
    expect(broken).to_contain_text(f"Token {token}, broken at")
    expect(broken.locator("div", has_text="Held now by")).to_contain_text(str(new.pid))
    expect(broken).to_contain_text("The old holder learns of it when it renews")
    visitor.check("break-after")


def test_all_that_a_filter_finds_are_broken_at_once(visit, child):
    names = [f"crop:{number:02}" for number in range(60)]
    holder = child(holders.hold, "default", names, {})
    holder.line()
    visitor = visit()
    page = visitor.list("?q=crop")
    page.get_by_role("button", name="All 60 that match…").click()
    expect(page.get_by_role("heading", name="These 60 holds will be broken")).to_be_visible()
    visitor.check("break-all-ask")
    released_by(visitor)
    expect(page.locator(".messagelist")).to_contain_text("60 locks were released")
    expect(page.get_by_text("No lock in use matches at the moment.")).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize(("look", "width"), LOOKS_AND_WIDTHS)
def test_each_page_fits_in_each_width(visit, child, look, width):
    """Also from right to left, where the texts of this app are English."""
    options = ARABIC if look == "arabic" else LOOKS[look]
    holder = child(holders.hold, "default", ["fit:1", "fit:2"], {"description": "restock[7f3a]"})
    holder.line()
    visitor = visit(viewport={"width": width, "height": 900}, **options)
    page = visitor.page
    page.goto("/admin/")
    visitor.check(f"index-{look}-{width}")
    visitor.list("?q=restock")
    visitor.check(f"search-{look}-{width}")
    page.locator("button[name=all]").click()
    visitor.check(f"break-all-ask-{look}-{width}")
    visitor.list("?q=fit:1")
    page.locator(".dl-table tbody .dl-name a").click()
    visitor.check(f"lock-linked-{look}-{width}")
    page.locator(".dl-button-danger").click()
    visitor.check(f"break-ask-{look}-{width}")
    page.locator("#id_reason").fill("the test says so")
    page.locator(".dl-button-danger").click()
    expect(page.locator("#dl-broken")).to_be_visible()
    visitor.check(f"break-after-{look}-{width}")


@pytest.mark.slow
def test_the_flow_works_without_javascript(visit, child):
    holder = child(holders.hold, "default", ["noscript"], {})
    holder.line()
    visitor = visit(java_script_enabled=False)
    page = visitor.page
    page.goto("/admin/")
    page.get_by_role("region", name="Locks").get_by_role("link", name="default").click()
    page.get_by_label("Search").fill("noscript")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("button", name=re.compile("^All 1 that match")).click()
    released_by(visitor)
    expect(page.get_by_role("region", name="Broken")).to_be_visible()
