"""Pages that keep themselves up to date."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.admin import holders


def refreshed(page, times=1):
    """Wait until the page has refreshed itself so often, from now on."""
    now = int(page.evaluate("document.body.dataset.dlRefreshed || 0"))
    enough = "|".join(str(number) for number in range(now + times, now + times + 500))
    expect(page.locator("body")).to_have_attribute(
        "data-dl-refreshed", re.compile(f"^({enough})$"), timeout=60_000
    )


@pytest.mark.slow
def test_the_page_refreshes_itself_when_told_to_and_remembers(visit, child):
    visitor = visit()
    page = visitor.list()
    live = page.get_by_role("button", name="Live")
    expect(live).to_have_attribute("aria-pressed", "false")
    live.click()
    expect(live).to_have_attribute("aria-pressed", "true")
    newcomer = child(holders.hold, "default", ["appearing"], {})
    newcomer.line()
    expect(page.get_by_role("link", name="appearing")).to_be_visible()
    page.reload()
    expect(live).to_have_attribute("aria-pressed", "true")
    refreshed(page)
    live.click()
    page.reload()
    expect(live).to_have_attribute("aria-pressed", "false")


@pytest.mark.slow
def test_refreshing_pauses_while_locks_are_selected_or_the_page_is_hidden(visit):
    visitor = visit()
    page = visitor.list("?q=stock:")
    page.get_by_role("button", name="Live").click()
    refreshed(page)
    page.get_by_role("checkbox", name="Select stock:7").check()
    expect(page.locator("#dl-live-note")).to_have_text("Paused: rows are selected or open")
    visitor.check("list-selected")
    page.evaluate("window.requests = performance.getEntriesByType('resource').length")
    page.get_by_role("checkbox", name="Select stock:7").uncheck()
    refreshed(page)
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    expect(page.locator("#dl-live-note")).to_have_text("Paused: the page is hidden")
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    refreshed(page)
    expect(page.locator("#dl-live-note")).to_have_text("")


@pytest.mark.slow
def test_refreshing_keeps_focus_and_place(visit):
    visitor = visit(viewport={"width": 1000, "height": 300})
    page = visitor.list("?q=stock:")  # locks that stay as they are
    link = page.get_by_role("link", name="stock:8")
    link.focus()
    link.scroll_into_view_if_needed()
    top = page.evaluate("window.scrollY")
    assert top > 0
    page.evaluate("document.getElementById('dl-live').click()")
    refreshed(page, 2)
    expect(page.get_by_role("link", name="stock:8")).to_be_focused()
    assert page.evaluate("window.scrollY") == top


@pytest.mark.slow
def test_what_is_typed_is_not_lost_to_a_refresh(visit):
    visitor = visit()
    page = visitor.list()
    page.get_by_role("button", name="Live").click()
    page.get_by_label("Search").press_sequentially("half a na")
    refreshed(page)
    expect(page.get_by_label("Search")).to_have_value("half a na")
    expect(page.get_by_label("Search")).to_be_focused()


def test_signed_out_meanwhile_it_says_so(visit):
    visitor = visit(color_scheme="light")  # nobody who is to stay signed in
    page = visitor.list()
    visitor.context.clear_cookies()
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#dl-live-note")).to_contain_text("Signed out")
    assert "stock:7" in visitor.names()


def with_short_times(page):
    """Refresh often, and give up soon."""
    page.evaluate(
        "Object.assign(document.getElementById('dl-live').dataset,"
        " {seconds: 0.2, limitSeconds: 0.5, staleSeconds: 1})"
    )


@pytest.mark.slow
def test_a_server_that_hangs_is_told_and_so_is_the_age_of_the_page(visit):
    """Requests are taken and never answered; then they are again."""
    visitor = visit(viewport={"width": 1280, "height": 900})
    page = visitor.list("?q=stock:")
    live = page.get_by_role("button", name="Live")
    live.click()
    refreshed(page)
    expect(live).not_to_have_attribute("data-paused", "")
    page.route("**/heldlock/**", lambda route: None)
    with_short_times(page)
    expect(page.locator("#dl-live-note")).to_have_text("No answer, trying again")
    expect(live).to_have_attribute("data-paused", "")
    expect(page.locator("#dl-age")).to_have_text(re.compile(r"^\d+ s ago$"))
    expect(page.locator(".dl-panel")).to_have_class(re.compile("dl-stale"))
    visitor.shoot("list-stale")
    page.unroute_all()
    page.evaluate(
        "Object.assign(document.getElementById('dl-live').dataset,"
        " {limitSeconds: 20, staleSeconds: 600})"
    )
    refreshed(page)
    expect(live).not_to_have_attribute("data-paused", "")
    expect(page.locator("#dl-age")).to_be_hidden()
    expect(page.locator(".dl-panel")).not_to_have_class(re.compile("dl-stale"))


def test_a_page_that_does_not_refresh_itself_tells_its_age_too(visit):
    page = visit().list("?q=stock:")
    expect(page.locator("#dl-age")).to_be_hidden()
    with_short_times(page)
    expect(page.locator("#dl-age")).to_have_text(re.compile(r"^\d+ s ago$"))
    expect(page.locator(".dl-panel")).not_to_have_class(re.compile("dl-stale"))


def test_only_the_first_look_waits_for_a_backend_that_is_asked_again(visit):
    page = visit().list("?retry=1")
    addresses = []
    page.on("request", lambda request: addresses.append(request.url))
    page.get_by_role("button", name="Live").click()
    refreshed(page)
    assert addresses
    assert not [address for address in addresses if "retry" in address]
