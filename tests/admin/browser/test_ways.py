"""Ways to use the panel: without JavaScript, by keyboard, in the dark, in other languages."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.admin import holders
from tests.admin.browser.looks import LOOKS, LOOKS_AND_SLOW_PHONE, released_by


@pytest.mark.slow
def test_all_of_it_works_without_javascript(visit, child):
    holder = child(holders.hold, "default", ["plain"], {})
    holder.line()
    visitor = visit(java_script_enabled=False)
    page = visitor.list()
    expect(page.get_by_role("button", name="Live")).to_have_count(0)
    page.get_by_label("Search").fill("plain")
    page.get_by_role("button", name="Filter").click()
    visitor.sees("plain")
    page.get_by_role("checkbox", name="Select plain").check()
    page.get_by_role("button", name="Force release").click()
    released_by(visitor)
    expect(page.locator(".messagelist")).to_contain_text("1 lock was released")


@pytest.mark.slow
def test_all_of_it_works_with_the_keyboard(visit, child):
    holder = child(holders.hold, "default", ["keys"], {})
    holder.line()
    visitor = visit()
    page = visitor.list("?q=keys")
    page.get_by_label("Search").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "hold":
            break
    page.keyboard.press("Space")
    expect(page.get_by_role("checkbox", name="Select keys")).to_be_checked()
    page.keyboard.press("Enter")
    page.get_by_label("Reason").focus()
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("1 lock was released: keys")


@pytest.mark.slow
def test_all_on_the_page_can_be_selected_at_once(visit):
    visitor = visit()
    page = visitor.list("?q=stock:")
    every = page.get_by_role("checkbox", name="Select all on this page")
    every.check()
    expect(page.get_by_role("status").filter(has_text="2 locks selected")).to_be_visible()
    page.get_by_role("checkbox", name="Select stock:7").uncheck()
    assert every.evaluate("box => box.indeterminate")


def test_dark_follows_the_admins_own_switch(visit):
    """The browser prefers light; the admin's switch says dark."""
    visitor = visit()
    page = visitor.list()
    background = "getComputedStyle(document.querySelector('.dl-card')).backgroundColor"
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload()
    assert page.evaluate(background) == "rgb(18, 18, 18)"
    visitor.check("list-dark-by-switch")


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_the_row_of_a_lock_can_be_unfolded_and_stays_so(visit, look):
    visitor = visit(look=look)
    page = visitor.list("?q=stock:")
    page.get_by_role("link", name="stock:7").click()
    page.get_by_text("Stored record").click()
    expect(page.get_by_text("acquired_at")).to_be_visible()
    page.get_by_role("button", name="Live").click()
    expect(page.locator("body")).to_have_attribute("data-dl-refreshed", re.compile("."))
    expect(page.get_by_text("acquired_at")).to_be_visible()
    visitor.check(f"lock-stored-{look}")


def test_a_free_lock_is_found_by_its_name(visit):
    page = visit().list("?q=never+taken")
    page.get_by_role("link", name="default", exact=True).last.click()
    expect(page.get_by_text("Nobody holds this lock.")).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("locale", "title"), [("de-DE", "Gehaltene Sperren"), ("zh-CN", "持有中的锁")]
)
@pytest.mark.parametrize("look", LOOKS_AND_SLOW_PHONE[::2])
def test_other_languages_fit_as_well(visit, locale, title, look):
    visitor = visit(look=look, locale=locale)
    page = visitor.list()
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    visitor.check(f"list-{locale}-{look}")
    page.get_by_role("link", name="stock:7").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("stock:7")
    visitor.check(f"lock-{locale}-{look}")
