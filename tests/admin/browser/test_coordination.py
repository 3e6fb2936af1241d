"""The pages of the coordination family in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from distlock.conf import locks
from distlock.recipes import (
    Barrier,
    Config,
    Election,
    Event,
    Group,
    Names,
    Progress,
    Queue,
    Topic,
)
from tests.admin.browser.looks import LOOKS
from tests.admin.family import stand

pytestmark = pytest.mark.slow


@pytest.fixture
def family(backend_settings, settings, users):
    """Two backends."""
    settings.DISTLOCK = {**backend_settings("local"), **backend_settings("local", alias="other")}
    yield
    locks.close_all()


@pytest.fixture
def values(family):
    mailer = Config("mailer")
    mailer.set({"host": "mx1", "port": 25, "retries": 3}, who="ada", reason="first")
    mailer.set({"host": "mx2", "port": 25, "retries": 3}, who="bob", reason="mx1 is down")
    Config("limits", using="other").set(120, who="ada", reason="")


@pytest.fixture
def groups(family):
    with (
        Group("workers", "worker-1", data={"queues": ["mail", "pdf"], "version": "2.4.1"}),
        Group("workers", "worker-2"),
        Group("web"),
    ):
        yield


@pytest.fixture
def work(family):
    running, done, failed = (
        Progress("import:stock", 4800, unit="rows"),
        Progress("reindex"),
        Progress("thumbnails", 10, unit="files"),
    )
    for each, count in ((running, 3120), (done, 17), (failed, 4)):
        each.start()
        each.step("prices of November")
        each.set(count)
    done.finish()
    failed.finish("failed", "ValueError: no picture")
    yield
    running.finish()


@pytest.fixture
def letters(family):
    letters = Queue("letters", max_deliveries=1)
    letters.resize(10)
    for who in ("ada", "bob", "eve", "dan", "kim"):
        letters.put({"to": who, "subject": "Your invoice of November"})
    letters.get().nack()
    Queue("thumbnails", using="other").put("a.png")
    with letters.get():
        yield


@pytest.fixture
def others(family):
    Barrier("import", 5).abort()
    Event("ready").set()
    for price in (61.4, 62.0):
        Topic("prices").publish({"gold": price})
    with Names("printers").register("front desk", "10.0.0.7:631", data={"floor": 2}):
        yield


@pytest.fixture
def elections(family):
    leader = Election("scheduler", "beat-1", priority=1, data={"zone": "a"}, order="succession")
    nights = Election("night-shift", "worker-9")
    for each in (leader, nights):
        each.campaign()
        each.resign()
    end = stand(
        leader, *(Election("scheduler", f"beat-{one}", order="succession") for one in (2, 3))
    )
    yield
    end()


def open_one(visitor, look, kind, name, *others):
    """Look at the list of a kind, which has these names, and then at the page of the first."""
    page = visitor.page
    page.goto(f"/admin/distlock/{kind}/")
    visitor.sees(*sorted((name, *others)))
    visitor.check(f"{kind}-list-{look}")
    page.get_by_role("link", name=name).click()
    expect(page.locator(".dl-lock-name")).to_have_text(name)
    visitor.check(f"{kind}-one-{look}")
    return page


@pytest.mark.parametrize("look", LOOKS)
def test_configuration(visit, values, look):
    visitor = visit("coordinator", look)
    page = open_one(visitor, look, "config", "mailer", "limits")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Value").fill('{"host": "mx3", "port": 25}')
    page.get_by_label("Reason").fill("moved")
    page.get_by_role("button", name="Compare").click()
    visitor.check(f"config-edit-{look}")
    page.get_by_role("button", name="Set this value").click()
    expect(page.locator(".dl-block").first).to_contain_text("mx3")
    visitor.check(f"config-done-{look}")


@pytest.mark.parametrize("look", LOOKS)
def test_groups(visit, groups, look):
    visitor = visit("coordinator", look)
    open_one(visitor, look, "group", "workers", "web")
    visitor.sees("worker-1", "worker-2")


@pytest.mark.parametrize("look", LOOKS)
def test_progress(visit, work, look):
    visitor = visit("coordinator", look)
    page = visitor.page
    page.goto("/admin/distlock/progress/")
    visitor.sees("import:stock", "reindex", "thumbnails")
    expect(page.locator("tr", has_text="import:stock")).to_contain_text("65 %")  # it refreshes
    visitor.check(f"progress-list-{look}")
    page.get_by_role("link", name="import:stock").click()
    visitor.check(f"progress-one-{look}")
    page.get_by_role("button", name="Ask it to end").click()
    page.get_by_label("Reason").fill("the wrong file")
    visitor.check(f"progress-cancel-{look}")
    page.get_by_role("button", name="Ask it to end").click()
    expect(page.locator("#dl-recipe")).to_contain_text("Asked to end")
    visitor.check(f"progress-done-{look}")


@pytest.mark.parametrize("look", LOOKS)
def test_elections(visit, elections, look):
    visitor = visit("coordinator", look)
    page = open_one(visitor, look, "election", "scheduler", "night-shift")
    page.locator("tr", has_text="beat-3").get_by_role("button", name="Appoint").click()
    page.get_by_label("Reason").fill("beat-2 is slow")
    visitor.check(f"election-appoint-{look}")
    page.get_by_role("button", name="Appoint this candidate").click()
    candidates = page.locator("section", has_text="Candidates").locator("tbody .dl-name")
    expect(candidates).to_have_text(["beat-1", "beat-3", "beat-2"])
    page.get_by_role("button", name="Ask to step down").click()
    page.get_by_label("Reason").fill("a deployment")
    visitor.check(f"election-step-down-{look}")
    page.get_by_role("button", name="Ask it to step down").click()
    expect(page.locator(".dl-log")).to_contain_text("a deployment")
    visitor.check(f"election-done-{look}")


@pytest.mark.parametrize("look", LOOKS)
def test_queues(visit, letters, look):
    visitor = visit("coordinator", look)
    page = open_one(visitor, look, "queue", "letters", "thumbnails")
    page.get_by_role("checkbox", name="Select 1").check()
    expect(page.get_by_text("1 item selected")).to_be_visible()
    page.get_by_role("button", name="Put the selected ones back").click()
    page.get_by_label("Reason").fill("the address was corrected")
    visitor.check(f"queue-retry-{look}")
    page.get_by_role("button", name="Put back").click()
    expect(page.locator(".dl-log")).to_contain_text("the address was corrected")
    visitor.check(f"queue-delivered-{look}")
    page.get_by_role("link", name="Ready 4").click()
    page.get_by_role("link", name="6", exact=True).click()
    expect(page.locator(".dl-block")).to_contain_text('"to": "ada"')
    visitor.check(f"queue-item-{look}")
    page.go_back()
    page.get_by_role("button", name="Discard all").click()
    visitor.check(f"queue-discard-{look}")


def test_a_body_is_on_one_line_until_it_is_opened(visit, letters):
    visitor = visit("coordinator")
    page = visitor.page
    page.goto("/admin/distlock/queue/one/?backend=default&name=letters&state=ready")
    row = page.locator(".dl-table tbody tr").first
    folded = row.bounding_box()["height"]
    row.locator("summary").click()
    expect(row.locator(".dl-block")).to_be_visible()
    assert row.bounding_box()["height"] > folded
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#dl-live-note")).to_have_text("Paused: rows are selected or open")
    visitor.check("queue-body-open")


def test_a_queue_is_worked_on_without_javascript(visit, letters):
    visitor = visit("coordinator", java_script_enabled=False)
    page = visitor.page
    page.goto("/admin/distlock/queue/one/?backend=default&name=letters")
    page.get_by_label("In the body or the reason").fill("ADA")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".dl-listing-items")).to_contain_text("1 found in 1 of 1 items")
    page.get_by_role("button", name="Discard all that match").click()
    page.get_by_label("Reason").fill("a test")
    page.get_by_role("button", name="Discard", exact=True).click()
    expect(page.locator(".messagelist")).to_contain_text("Items that were discarded: 1.")


@pytest.mark.parametrize("look", LOOKS)
def test_what_is_only_looked_at(visit, others, look):
    visitor = visit("coordinator", look)
    open_one(visitor, look, "barrier", "import")
    open_one(visitor, look, "event", "ready")
    open_one(visitor, look, "topic", "prices")
    open_one(visitor, look, "names", "printers")
