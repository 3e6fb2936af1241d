"""Nine incidents at three in the morning: a few clicks find the sentence that answers.

Each is replayed on real servers, and begins on the front page of the admin. What only a history of
all holds could answer is not asked here.
"""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from playwright.sync_api import expect

from distlock import Lock
from distlock.admin.locks import HoldRef
from distlock.conf import locks
from distlock.recipes import Config, Election, Queue
from tests.admin import holders
from tests.admin.browser import incidents
from tests.admin.browser.looks import reload_until
from tests.admin.browsing import Visitor
from tests.contract.watch import eventually

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: Seconds of a lease: its last third is long enough for some clicks on a busy machine.
LEASE = 45


@pytest.fixture
def chief(users):
    """Someone who may do everything."""
    user = User.objects.create_superuser("chief")
    yield user
    LogEntry.objects.all().delete()
    user.delete()


@pytest.fixture
def admin(browser, address, chief):
    """Someone in front of the front page of the admin; the page."""
    visitor = Visitor(browser, address, chief)
    visitor.page.shoot = visitor.shoot
    yield visitor.page
    visitor.close()


@pytest.fixture
def use(backend_settings, settings):
    """``use("mariadb", zk="zookeeper")``: the backends, the first as "default"."""

    def choose(first, LEASE=LEASE, **others):
        entries = backend_settings(first, LEASE=LEASE)
        for alias, kind in others.items():
            entries |= backend_settings(kind, alias=alias)
        settings.DISTLOCK = entries

    yield choose
    locks.close_all()


def to_locks(page, alias="default"):
    page.goto("/admin/")
    page.get_by_role("region", name="Locks").get_by_role("link", name=alias, exact=True).click()


def search(page, text):
    page.get_by_label("Search").fill(text)
    page.get_by_role("button", name="Filter", exact=True).click()


def rows(page):
    return page.locator(".dl-table tbody tr")


def to_recipe(page, kind, name):
    page.goto("/admin/")
    page.get_by_role("main").get_by_role("link", name=kind, exact=True).first.click()
    page.get_by_role("link", name=name, exact=True).click()


def test_a_lock_has_been_held_for_two_hours_and_forty_wait_for_it(use, mariadb, child, admin):
    use("mariadb")
    holder = child(holders.hold, "default", ["report", "report:cache"], {})
    holder.line()
    with Lock("brief"):
        mariadb.execute(
            "UPDATE database_lock SET acquired_at = acquired_at - INTERVAL 2 HOUR"
            " WHERE `lock` = 'report'"
        )
        for _ in range(4):
            child(incidents.wait_in_threads, "default", "report", 10).line()
        eventually(lambda: Lock("report").info().waiting == 40)
        to_locks(admin)
        admin.get_by_role("link", name="Held for").click()
        oldest = rows(admin).first
        expect(oldest).to_contain_text("report")
        expect(oldest).to_contain_text("2 h 0 min")
        oldest.get_by_role("link", name="report", exact=True).click()
        expect(admin.locator("#dl-lock")).to_contain_text(
            "its process was alive then, but it is unknown whether its work goes on"
        )
        waiters = admin.locator(".dl-waiter-list li")
        reload_until(lambda: waiters.count() == 4, admin)
        expect(admin.locator("#dl-waiters-title")).to_have_text("Waiters 40 in 4 processes")
        admin.shoot("incident-1")
        admin.get_by_title("Holds and waits of this process").first.click()
        admin.get_by_label("Search").wait_for()
        names = admin.locator(".dl-table tbody .dl-name > :first-child")
        reload_until(lambda: names.all_inner_texts() == ["report", "report:cache"], admin)


def test_two_wait_for_each_other_over_two_backends(use, child, admin):
    use("mariadb", zk="zookeeper")
    one = child(incidents.hold_and_want, "default", "orders", "zk", "stock")
    other = child(incidents.hold_and_want, "zk", "stock", "default", "orders")
    for process in (one, other):
        process.line()
    for process in (one, other):
        process.tell("go on")
        process.line()
    eventually(lambda: locks["default"].inspect("orders").waiters)
    eventually(lambda: locks["zk"].inspect("stock").waiters)
    to_locks(admin)
    search(admin, "orders")
    rows(admin).get_by_role("link", name="orders", exact=True).click()
    waiters = admin.locator(".dl-waiters")
    waiters.wait_for()
    reload_until(lambda: f":{other.pid}" in waiters.inner_text(), admin)
    waiters.get_by_title("Holds and waits of this process").click()
    admin.get_by_label("Search").wait_for()
    names = admin.locator(".dl-table tbody .dl-name > :first-child")
    # It waits for one, and holds the other.
    reload_until(lambda: names.all_inner_texts() == ["orders", "stock"], admin)
    expect(rows(admin).filter(has_text="stock").locator(".dl-owner").first).to_contain_text(
        str(other.pid)
    )
    rows(admin).get_by_role("link", name="stock", exact=True).click()
    expect(admin.locator(".dl-holder")).to_contain_text(str(other.pid))
    expect(admin.locator(".dl-waiters")).to_contain_text(f":{one.pid}")
    admin.shoot("incident-2")


def test_holders_were_killed_and_stopped(use, child, admin):
    use("mariadb", LEASE=24)
    killed = child(holders.hold, "default", ["killed"], {})
    stopped = child(holders.hold, "default", ["stopped"], {})
    for process in (killed, stopped):
        process.line()
    killed.kill()
    stopped.signal(signal.SIGSTOP)
    states = lambda: {info.name: info.remaining for info in locks["default"].list("")}  # noqa: E731
    eventually(lambda: all(rest < 7.5 for rest in states().values()))
    to_locks(admin)
    names = admin.locator(".dl-table tbody .dl-name > :first-child")
    admin.get_by_label("State").select_option("expiring")
    admin.get_by_role("button", name="Filter", exact=True).click()
    expect(names).to_have_text(["killed", "stopped"])
    rows(admin).get_by_role("link", name="stopped").click()
    expect(admin.locator("#dl-lock")).to_contain_text(
        "should have been renewed by now: its process hangs, has ended, or cannot reach the backend"
    )
    admin.shoot("incident-3")
    eventually(lambda: all(rest == 0 for rest in states().values()))
    admin.goto("/admin/")
    admin.get_by_role("region", name="Locks").get_by_role("link", name="Expired: 2").click()
    expect(names).to_have_text(["killed", "stopped"])
    rows(admin).get_by_role("link", name="killed").click()
    expect(admin.locator("#dl-lock")).to_contain_text(
        "The next request gets the lock. There is no need to break it; a sweep clears it."
    )
    stopped.signal(signal.SIGCONT)


def test_one_database_is_silent_and_another_one_is_dead(use, proxied, usual_timeout, admin):
    silent, dead = proxied("mariadb"), proxied("postgresql")
    use("mariadb", dead="postgresql", zk="zookeeper")
    try:
        for alias in locks:
            locks[alias].inspect("nothing")
        usual_timeout()
        silent.silence()
        dead.refuse()
        admin.goto("/admin/")
        health = admin.get_by_role("region", name="Locks")
        for alias, sentence in (
            ("default", "Cannot be asked: No answer within 2 seconds."),
            ("dead", f'127.0.0.1", port {dead.port}'),
            ("zk", "No lease ends soon or has expired."),
        ):
            expect(health.get_by_role("listitem").filter(has_text=alias)).to_contain_text(sentence)
        admin.shoot("incident-4")
        health.get_by_role("link", name="default", exact=True).click()
        card = admin.locator(".dl-card").filter(has_text="default")
        expect(card).to_contain_text("The locks held there are unknown; there may be many.")
        expect(card.get_by_role("link", name="Ask again")).to_be_visible()
    finally:
        silent.heal()
        dead.heal()


def test_somebody_broke_this_last_night(use, users, taken, admin):
    use("mariadb")
    (lock,) = taken("stock")
    token, ref = lock.token, str(HoldRef.of(locks["default"].inspect("stock")))
    night = Client()
    night.force_login(users["operator"])
    data = {"hold": [ref], "confirmed": "yes", "reason": "the import hung"}
    night.post(reverse("admin:distlock_heldlock_release"), data, headers={"host": "127.0.0.1"})
    for entry in LogEntry.objects.all():
        entry.action_time -= timedelta(hours=8)
        entry.save()
    to_locks(admin)
    search(admin, "stock")
    expect(admin.get_by_text("No lock in use matches at the moment.")).to_be_visible()
    admin.locator(".dl-empty").get_by_role("link", name="default").click()
    done = admin.locator(".dl-log")
    expect(done).to_contain_text("operator")
    expect(done).to_contain_text(f"Force released: token {token}")
    expect(done).to_contain_text("Reason: the import hung")
    admin.shoot("incident-5")


def test_three_hundred_poison_letters_lie_beside_fifty_thousand(use, admin):
    use("mariadb", LEASE=600)
    letters = Queue("mails", max_deliveries=1)
    for _ in range(25):
        letters.put_many([{"to": "nobody@"}] * 12)
    for _ in range(300):
        letters.get().nack(reason="ValueError: 'nobody@' is no address")
    for number in range(50_000 // 12):
        letters.put_many([{"to": f"{number}@example.org"}] * 12)
    admin.goto("/admin/")
    admin.get_by_role("main").get_by_role("link", name="Queues", exact=True).first.click()
    expect(rows(admin).filter(has_text="mails")).to_contain_text("300")
    admin.get_by_role("link", name="mails", exact=True).click()
    expect(admin.get_by_text("ValueError: 'nobody@' is no address").first).to_be_visible()
    admin.shoot("incident-6")


def test_an_election_flaps(use, child, admin):
    use("mariadb", LEASE=3)
    for number in range(3):
        leader = child(incidents.lead, "scheduler", f"beat-{number}")
        assert leader.line() == "leads"
        leader.kill()
    last = Election("scheduler", "beat-9")
    last.campaign()
    try:
        to_recipe(admin, "Elections", "scheduler")
        history = admin.get_by_role("region", name="History")
        crashed = history.locator("tbody tr").filter(has_text="crashed")
        expect(crashed.locator(".dl-name")).to_have_text(["beat-2", "beat-1", "beat-0"])
        expect(admin.locator("#dl-recipe")).to_contain_text("If its process dies, or is cut off")
        admin.shoot("incident-7")
        crashed.first.get_by_title("Holds and waits of this process").click()
        expect(admin.get_by_role("heading", name="No such lock")).to_be_visible()  # it is gone
    finally:
        last.resign()


def test_a_value_of_the_configuration_is_wrong(use, admin):
    use("mariadb")
    mails = Config("mails per minute")
    mails.set(600, who="ada", reason="as agreed")
    mails.set(6, who="bob", reason="a test")
    to_recipe(admin, "Configuration", "mails per minute")
    wrong = admin.get_by_role("region", name="History").locator("tbody tr").filter(has_text="bob")
    expect(wrong).to_contain_text("a test")
    admin.get_by_role("button", name="Roll back").first.click()
    admin.locator("form textarea, form input[type=text]").last.fill("it was a test")
    admin.shoot("incident-8")
    admin.locator("button[name=confirmed], button[name=preview]").first.click()
    expect(admin.locator("#dl-recipe")).to_contain_text("600")
    eventually(lambda: mails.get().value == 600)


def test_the_setting_is_wrong(use, settings, admin):
    use("mariadb")
    settings.DISTLOCK = {**settings.DISTLOCK, "zk": {"BACKEND": "distlock.backends.Zookeeper"}}
    admin.goto("/admin/")
    health = admin.get_by_role("region", name="Locks")
    expect(health.get_by_role("listitem").filter(has_text="zk")).to_contain_text(
        "DISTLOCK['zk']: cannot import BACKEND 'distlock.backends.Zookeeper'"
    )
    expect(health.get_by_role("listitem").filter(has_text="default")).to_contain_text("answered in")


ROWS = """
INSERT INTO database_lock
    (`lock`, description, owner, nonce, host, process, thread, token, lease, renews, acquired_at,
     expires_at)
SELECT CONCAT('invoice:', LPAD(seq, 5, '0')),
       IF(seq % 150 = 0, 'Celery task shop.charge[7f3a]', 'Celery task shop.charge[other]'),
       CONCAT(MD5(seq), ':1'), MD5(seq), 'worker-7', seq % 9, 'MainThread', 1795221409053272 + seq,
       1800, 1, UTC_TIMESTAMP(6) - INTERVAL 5 MINUTE, UTC_TIMESTAMP(6) + INTERVAL 20 MINUTE
FROM seq_1_to_30000
"""


def test_two_hundred_of_thirty_thousand_are_broken_by_one_search(use, mariadb, admin):
    use("mariadb")
    locks["default"].inspect("nothing")
    mariadb.execute(ROWS)
    to_locks(admin)
    expect(admin.locator(".dl-found")).to_contain_text("50 of 30000 shown")
    search(admin, "7f3a")
    admin.get_by_role("button", name="All 200 that match…").click()
    expect(admin.get_by_role("heading", name="These 200 holds will be broken")).to_be_visible()
    admin.get_by_label("Reason").fill("the worker was deleted")
    admin.shoot("incident-9")
    admin.get_by_role("button", name="Break these 200 holds").click()
    expect(admin.locator(".messagelist")).to_contain_text("200 locks were released")
    expect(admin.get_by_text("No lock in use matches at the moment.")).to_be_visible()
    ((left,),) = mariadb.execute("SELECT COUNT(*) FROM database_lock WHERE owner <> ''")
    assert int(left) == 29_800
    reasons = LogEntry.objects.filter(change_message__endswith="Reason: the worker was deleted")
    assert reasons.count() == 200
