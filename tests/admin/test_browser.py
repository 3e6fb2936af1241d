"""The panel in a real browser, with locks that other processes hold in two kinds of backends."""

from __future__ import annotations

import re
import time

import pytest
from django.test import override_settings
from playwright.sync_api import expect

from distlock.handler import locks
from tests.admin import holders
from tests.admin.browsing import PHONE, Visitor, chromium, served
from tests.children import Child
from tests.databases import ALIASES
from tests.nodes import ROOT

LONG = "long:" + "abcdefghi/" * 55 + "xyzzy"  # 560 characters
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'
BIDI = "order:\u202e24:redro\u2066"
LOOKS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": PHONE, "has_touch": True},
}
#: The list and the page of a lock are always looked at on a phone, the others when there is time.
LEISURELY = ["light", "dark", pytest.param("phone", marks=pytest.mark.slow)]


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
            "LEASE": 6,
            "OPTIONS": {"database": ALIASES["mariadb"], "idle": 60},
        },
        "zookeeper": {
            "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
            "LOCATION": zookeeper.hosts,
            "OPTIONS": {"root": ROOT, "session_timeout": 6},
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
def regulars(browser, address, users):
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
def visit(regulars, browser, address, scene, users):
    """``visit("operator")``: someone in front of a browser; nothing may be complained about."""
    visitors, strangers = [], []

    def come(user="operator", look="light", **options):
        if options:
            strangers.append(Visitor(browser, address, users[user], **{**LOOKS[look], **options}))
            visitors.append(strangers[-1])
        else:
            visitors.append(regulars(user, look))
        return visitors[-1]

    yield come
    complaints = [complaint for visitor in visitors for complaint in visitor.complaints]
    for visitor in visitors:
        visitor.complaints.clear()
        visitor.leave()
    for stranger in strangers:
        stranger.close()
    assert complaints == []


def released_by(visitor, reason="the test says so"):
    """Fill in the reason on the page that asks, and confirm."""
    visitor.page.get_by_label("Reason").fill(reason)
    visitor.page.get_by_role("button", name=re.compile("^Break")).click()


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
    while waiters.inner_text() != "1":  # who looks at the row meanwhile is not in line
        page.reload()
    expect(row).to_contain_text(str(scene["tokens"][0][0]))
    expect(page.locator(".dl-card")).to_have_count(2)
    visitor.check(f"list-{look}")


@pytest.mark.parametrize("look", LOOKS)
def test_the_page_of_a_lock_shows_its_holder_and_who_waits_in_order(visit, scene, look):
    visitor = visit(look=look)
    visitor.list("?q=feed").get_by_role("link", name="feed", exact=True).click()
    page = visitor.page
    expect(page.get_by_role("heading", level=1)).to_have_text("feed")
    line = page.locator(".dl-line li")
    expect(line).to_contain_text([str(waiter.pid) for waiter in scene["waiters"][:2]])
    token = scene["tokens"][1][0]
    command = f"manage.py locks release --using=zookeeper --token={token} feed"
    expect(page.locator(".dl-code").first).to_have_text(command)
    expect(page.locator(".dl-meaning")).to_contain_text("as long as the session of its process")
    visitor.check(f"lock-{look}")


@pytest.mark.parametrize("look", LEISURELY)
def test_the_page_that_asks_before_releasing(visit, look):
    visitor = visit(look=look)
    page = visitor.list("?q=stock")
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


@pytest.mark.parametrize("look", LEISURELY)
def test_the_page_that_asks_before_sweeping(visit, look):
    visitor = visit(look=look)
    visitor.list().get_by_role("button", name="Sweep").click()
    visitor.check(f"sweep-{look}")
    visitor.page.get_by_role("button", name="Sweep now").click()
    expect(visitor.page.locator(".messagelist")).to_contain_text("Swept zookeeper: 0 expired")
    visitor.check(f"swept-{look}")


def test_filters(visit):
    visitor = visit()
    page = visitor.list()
    page.get_by_label("Name").fill("STOCK")
    page.get_by_role("button", name="Filter").click()
    visitor.sees("stock:7", "stock:8")
    page.get_by_label("Backend", exact=True).select_option("zookeeper")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("No such lock")).to_be_visible()
    visitor.check("list-nothing-found")
    page.get_by_role("link", name="Clear").click()
    expect(page.get_by_role("link", name="feed", exact=True)).to_be_visible()
    assert len(visitor.names()) == 7


def test_a_release_reaches_the_holder(visit, child):
    """From the click to LockLost in the process that held the lock."""
    holder = child(holders.hold_until_lost, "default", "hung", {"lease": 1.5})
    token = int(holder.line())
    visitor = visit()
    page = visitor.list("?q=hung")
    page.get_by_role("checkbox", name="Choose hung").check()
    expect(page.get_by_role("status").filter(has_text="1 lock chosen")).to_be_visible()
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
    """Let the child look whether it has lost its lock; what it says then, if anything."""
    try:
        child.tell()
        return child.line(timeout=0.1)
    except AssertionError as error:
        if "said nothing" in str(error):
            return None
        raise


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


def test_a_token_that_changed_between_page_and_click(visit, child):
    first = child(holders.hold, "default", ["changing"], {})
    first.line()
    visitor = visit()
    page = visitor.list("?q=changing")
    page.get_by_role("checkbox", name="Choose changing").check()
    page.get_by_role("button", name="Force release").click()
    first.tell()
    first.kill()
    locks["default"].force_release("changing", locks["default"].inspect("changing").token)
    second = child(holders.hold, "default", ["changing"], {})
    token = int(second.line())
    released_by(visitor)
    expect(page.locator(".messagelist .warning")).to_contain_text("1 lock was left alone")
    assert locks["default"].inspect("changing").token == token
    visitor.check("left-alone")


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


@pytest.mark.parametrize("look", LEISURELY)
def test_a_backend_that_is_down(visit, backends, settings, look):
    down = {
        "BACKEND": "distlock.backends.database.DatabaseBackend",
        "OPTIONS": {"database": ALIASES["postgresql"]},
    }
    from tests.databases import moved

    with moved("postgresql", 1):
        settings.DISTLOCK = {"default": backends["default"], "archive": down}
        visitor = visit(look=look)
        page = visitor.list()
        card = page.locator(".dl-card", has_text="archive")
        expect(card).to_contain_text("Cannot be asked")
        expect(card).to_contain_text("What is held there is unknown")
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


# Live refresh


def refreshed(page, times=1):
    """Wait until the page has refreshed itself so often, from now on."""
    now = int(page.evaluate("document.body.dataset.dlRefreshed || 0"))
    enough = "|".join(str(number) for number in range(now + times, now + times + 10))
    expect(page.locator("body")).to_have_attribute(
        "data-dl-refreshed", re.compile(f"^({enough})$"), timeout=20_000
    )


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


def test_refreshing_pauses_while_locks_are_chosen_or_the_page_is_out_of_sight(visit):
    visitor = visit()
    page = visitor.list("?q=stock")
    page.get_by_role("button", name="Live").click()
    refreshed(page)
    page.get_by_role("checkbox", name="Choose stock:7").check()
    expect(page.locator("#dl-live-note")).to_have_text("Paused: locks are chosen")
    visitor.check("list-chosen")
    page.evaluate("window.requests = performance.getEntriesByType('resource').length")
    page.get_by_role("checkbox", name="Choose stock:7").uncheck()
    refreshed(page)
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    expect(page.locator("#dl-live-note")).to_have_text("Paused: out of sight")
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    refreshed(page)
    expect(page.locator("#dl-live-note")).to_have_text("")


def test_refreshing_keeps_focus_and_place(visit):
    visitor = visit(viewport={"width": 1000, "height": 300})
    page = visitor.list("?q=stock")  # locks that stay as they are
    link = page.get_by_role("link", name="stock:8")
    link.focus()
    link.scroll_into_view_if_needed()
    top = page.evaluate("window.scrollY")
    assert top > 0
    page.evaluate("document.getElementById('dl-live').click()")
    refreshed(page, 2)
    expect(page.get_by_role("link", name="stock:8")).to_be_focused()
    assert page.evaluate("window.scrollY") == top


def test_what_is_typed_is_not_lost_to_a_refresh(visit):
    visitor = visit()
    page = visitor.list()
    page.get_by_role("button", name="Live").click()
    page.get_by_label("Name").press_sequentially("half a na")
    refreshed(page)
    expect(page.get_by_label("Name")).to_have_value("half a na")
    expect(page.get_by_label("Name")).to_be_focused()


def test_signed_out_meanwhile_it_says_so(visit):
    visitor = visit(color_scheme="light")  # nobody who is to stay signed in
    page = visitor.list()
    visitor.context.clear_cookies()
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#dl-live-note")).to_contain_text("Signed out")
    assert "stock:7" in visitor.names()


# Ways to use it


def test_all_of_it_works_without_javascript(visit, child):
    holder = child(holders.hold, "default", ["plain"], {})
    holder.line()
    visitor = visit(java_script_enabled=False)
    page = visitor.list()
    expect(page.get_by_role("button", name="Live")).to_have_count(0)
    page.get_by_label("Name").fill("plain")
    page.get_by_role("button", name="Filter").click()
    visitor.sees("plain")
    page.get_by_role("checkbox", name="Choose plain").check()
    page.get_by_role("button", name="Force release").click()
    released_by(visitor)
    expect(page.locator(".messagelist")).to_contain_text("1 lock was released")


def test_all_of_it_works_with_the_keyboard(visit, child):
    holder = child(holders.hold, "default", ["keys"], {})
    holder.line()
    visitor = visit()
    page = visitor.list("?q=keys")
    page.get_by_label("Name").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "hold":
            break
    page.keyboard.press("Space")
    expect(page.get_by_role("checkbox", name="Choose keys")).to_be_checked()
    page.keyboard.press("Enter")
    page.get_by_label("Reason").focus()
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("1 lock was released: keys")


def test_all_on_the_page_can_be_chosen_at_once(visit):
    visitor = visit()
    page = visitor.list("?q=stock")
    every = page.get_by_role("checkbox", name="Choose all on this page")
    every.check()
    expect(page.get_by_role("status").filter(has_text="2 locks chosen")).to_be_visible()
    page.get_by_role("checkbox", name="Choose stock:7").uncheck()
    assert every.evaluate("box => box.indeterminate")


def test_dark_follows_the_admins_own_switch(visit):
    """The browser prefers light; the admin is told dark."""
    visitor = visit()
    page = visitor.list()
    background = "getComputedStyle(document.querySelector('.dl-card')).backgroundColor"
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload()
    assert page.evaluate(background) == "rgb(18, 18, 18)"
    visitor.check("list-dark-by-switch")


def test_the_table_beside_it(visit):
    # axe styles what it scrolls; whether Django's own pages keep the policy is not ours to show
    visitor = visit(bypass_csp=True)
    visitor.page.goto("/admin/distlock/databaselock/?q=stock")
    expect(visitor.page.get_by_role("link", name="stock:7")).to_be_visible()
    visitor.check("table")
    visitor.page.get_by_role("link", name="stock:7").click()
    expect(visitor.page.get_by_text("shop.restock")).to_be_visible()
    visitor.check("table-row")


@pytest.mark.parametrize(
    ("locale", "title"), [("de-DE", "Gehaltene Sperren"), ("zh-CN", "持有中的锁")]
)
@pytest.mark.parametrize("look", LEISURELY[::2])
def test_other_languages_fit_as_well(visit, locale, title, look):
    visitor = visit(look=look, locale=locale)
    page = visitor.list()
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    visitor.check(f"list-{locale}-{look}")
    page.get_by_role("link", name="stock:7").click()
    visitor.check(f"lock-{locale}-{look}")
