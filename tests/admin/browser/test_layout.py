"""What fits on the screen: tablets and small windows, and languages from right to left."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from distlock.conf import locks
from distlock.recipes import Queue
from tests.admin.browser.looks import BIDI, HOSTILE
from tests.admin.browser.test_coordination import family  # noqa: F401 - a fixture

WINDOWS = {"tablet": {"width": 768, "height": 1024}, "laptop": {"width": 1024, "height": 768}}
#: pixels that a row of two lines has, with the space around them
TWO_LINES = 60

WIDER = "document.documentElement.scrollWidth - window.innerWidth"
ROWS = "[...document.querySelectorAll('.dl-table tbody tr')].map(row => row.offsetHeight)"
FIRST = "document.querySelector('.dl-table tbody tr').getBoundingClientRect().top"
#: by element, whether what is read first stands left of what is read last
LEFT_TO_RIGHT = """elements => elements.map(element => {
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) if (texts.currentNode.data.trim()) found.push(texts.currentNode);
  const place = (node, offset) => {
    const range = document.createRange();
    range.setStart(node, offset);
    range.setEnd(node, offset + 1);
    return range.getBoundingClientRect();
  };
  const last = found.at(-1);
  const [begin, end] = [place(found[0], 0), place(last, last.data.trimEnd().length - 1)];
  return begin.top === end.top && begin.left <= end.left;
})"""


@pytest.fixture
def crowded(family):  # noqa: F811
    """A queue of long and hostile texts."""
    letters = Queue("letters", max_deliveries=1)
    letters.resize(500)
    bodies = [{"to": f"customer-{number}", "lines": ["x" * 30] * 9} for number in range(36)]
    for start in range(0, 36, 12):
        letters.put_many(bodies[start : start + 12])
    for delivery in letters.get_many(4):
        delivery.nack(reason=f"{HOSTILE} {BIDI} " * 3)
    with letters.get():
        yield
    locks.close_all()


def fits(page):
    """Return by how many pixels the page is too wide, and the rows that are too tall."""
    return max(page.evaluate(WIDER), 0), [one for one in page.evaluate(ROWS) if one > TWO_LINES]


def test_the_first_lock_is_in_the_first_half_of_the_first_screen(visit):
    for window in WINDOWS.values():
        page = visit(viewport=window).list()
        assert page.evaluate(FIRST) < window["height"] / 2, window
        assert fits(page) == (0, []), window


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS)
def test_from_right_to_left_names_and_times_are_unbroken(visit, crowded, window):
    visitor = visit("coordinator", viewport=WINDOWS[window], locale="ar")
    page = visitor.page
    page.goto("/admin/distlock/queue/one/?backend=default&name=letters&state=delivered")
    expect(page.locator("html")).to_have_attribute("dir", "rtl")
    for what in (".dl-owner > :first-child", ".dl-table time", ".dl-asof", ".dl-code"):
        found = page.locator(what).evaluate_all(LEFT_TO_RIGHT)
        assert found, what
        assert all(found), what
    assert fits(page) == (0, [])
    visitor.check(f"rtl-{window}-queue")


@pytest.mark.slow
def test_from_right_to_left_the_owners_of_locks_are_unbroken(visit):
    visitor = visit(locale="ar")
    page = visitor.list()
    for what in (".dl-owner > :first-child", ".dl-table time", ".dl-table .dl-number"):
        assert all(page.locator(what).evaluate_all(LEFT_TO_RIGHT)), what
    visitor.check("rtl-list")
