"""Breaking as a flow: who is next, what became of it, and all that match a filter at once."""

import os
import signal

import pytest
from django.contrib.admin.models import LogEntry

from distlock import Lock
from distlock.admin.locks import BrokenHold, HoldRef, LockRow
from distlock.conf import locks
from tests.admin import holders
from tests.contract.watch import eventually

#: Seconds of a lease that is renewed, and of one that ends within a test.
LONG, SHORT = 600, 3


@pytest.fixture(params=["mariadb", "postgresql", "zookeeper", "etcd"])
def backend(request, backend_settings, settings):
    settings.DISTLOCK = backend_settings(request.param)
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def mariadb_backend(backend_settings, settings):
    settings.DISTLOCK = backend_settings("mariadb")
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def ask(operator, url):
    """``ask("a")``: the page that asks before the hold of a lock is broken."""

    def choose(name):
        ref = str(HoldRef.of(locks["default"].inspect(name)))
        return operator.post(url("release"), {"hold": [ref]})

    return choose


@pytest.fixture
def confirm(operator, url):
    """``confirm(page)``: break what a page has asked about; the page after that."""

    def send(page, **more):
        holds = [str(row.ref) for row in page.context["unchanged"]]
        data = {"hold": holds, "confirmed": "yes", "reason": "a test", **more}
        response = operator.post(url("release"), data, follow=True)
        response.address = response.redirect_chain[-1][0]
        response.text = response.content.decode()
        return response

    return send


@pytest.fixture
def waiter(child):
    """``waiter("a")``: a process that waits for a lock."""

    def start(name):
        backend = locks["default"]
        before = len(backend.inspect(name).waiters)
        process = child(holders.wait_for, "default", name)
        process.line()
        eventually(lambda: len(backend.inspect(name).waiters) > before)
        return process

    return start


def test_the_page_that_asks_names_the_waiters_and_who_is_next(backend, ask, holder, waiter):
    holder("one")
    first, second = waiter("one"), waiter("one")
    expected = f":{first.pid}</bdi> is next and gets the lock at once."

    def asked():
        """Ask for the page; between two statements that wait, a waiter is not seen for a moment."""
        text = ask("one").content.decode()
        return expected in text.replace(":MainThread", "") and text

    text = eventually(asked)
    heading = "Waiters, in the order in which they get it"
    waiting = text[text.index(heading) : text.index("What this does")]
    assert 0 < waiting.index(f":{first.pid}<") < waiting.index(f":{second.pid}<")


def test_the_page_that_asks_says_that_nobody_waits(backend, ask, holder):
    holder("one")
    assert "Nobody in another process waits" in ask("one").content.decode()


def test_one_stays_on_the_lock_and_sees_who_has_it_now(backend, ask, confirm, holder, waiter):
    old = holder("one", lease=LONG) if backend.capabilities.lease_lengths else holder("one")
    new = waiter("one")
    page = confirm(ask("one"))
    assert new.line() == "got it"
    assert "/heldlock/lock/?" in page.address
    assert "1 lock was released" in page.text
    broken = page.text[page.text.index('id="dl-broken"') :].split("</section>")[0]
    assert f"Token {old.tokens[0]}, broken at" in broken
    assert f":{old.pid}<" in broken


def test_the_new_holder_is_shown_when_the_page_is_looked_at_again(
    mariadb_backend, operator, ask, confirm, holder, waiter
):
    holder("one", lease=LONG)
    new = waiter("one")
    page = confirm(ask("one"))
    assert new.line() == "got it"
    again = operator.get(page.address)
    aftermath = again.context["detail"].aftermath
    assert again.context["detail"].row.info.owner.pid == new.pid
    assert (aftermath["noticed"], aftermath["is_due"], aftermath["has_ended"]) == (
        False,
        True,
        False,
    )
    assert "The old holder learns of it when it renews" in again.content.decode()


def test_what_this_process_held_is_known_to_be_lost(local, ask, confirm, taken):
    (lock,) = taken("one")
    assert "The old holder has noticed." in confirm(ask("one")).text
    assert not lock.held


def test_a_process_that_works_on_after_its_renewal_was_due_has_noticed(
    mariadb_backend, operator, ask, confirm, holder
):
    """It renews another lock, and this one, too, if it were still its own."""
    holder("one", "other", lease=SHORT)
    address = confirm(ask("one")).address
    text = eventually(
        lambda: (
            (page := operator.get(address)).context["detail"].aftermath["noticed"]
            and page.content.decode()
        )
    )
    assert "The old holder has noticed." in text
    assert "Its process was at work with this backend at" in text


def test_of_a_stopped_process_it_is_not_known_until_its_lease_is_over(
    mariadb_backend, operator, ask, confirm, holder
):
    stopped = holder("one", lease=SHORT)
    page = ask("one")
    stopped.signal(signal.SIGSTOP)
    address = confirm(page).address

    def shown(sentence):
        return eventually(lambda: sentence in operator.get(address).content.decode())

    assert shown("If it was stopped or cut off, it relies on the lock until")
    assert shown("lock.held is false there by the clock of its own process")
    stopped.signal(signal.SIGCONT)


def test_one_that_does_not_renew_is_not_told(mariadb_backend, ask, confirm, holder):
    holder("one", lease=LONG, renew=False)
    assert "It does not renew its lease: until" in confirm(ask("one")).text


@pytest.mark.parametrize("broken", ["", "nonsense", "WzFd:1wVgEt:abc"])
def test_nobody_can_write_such_a_page_by_hand(local, operator, url, broken):
    page = operator.get(url("lock"), {"backend": "default", "name": "one", "broken": broken})
    assert page.status_code == 200
    assert 'id="dl-broken"' not in page.content.decode()


def test_what_is_signed_can_be_read(local, taken):
    taken("one")
    broken = BrokenHold.of(LockRow(local.inspect("one")))
    assert BrokenHold.parse(broken.signed()) == broken
    assert (broken.owner.pid, broken.at, broken.due) == (os.getpid(), broken.at, broken.at)


# All that match a filter


@pytest.fixture
def shown(operator, url):
    """``shown(q="a")``: the list with a filter; ``page.text`` is what it says."""

    def get(**query):
        page = operator.get(url("list"), query)
        page.text = page.content.decode()
        return page

    return get


def test_all_that_match_are_broken_with_one_reason(local, shown, operator, url, confirm, taken):
    chosen = taken(*(f"shop:{number:03}" for number in range(70)))
    (other,) = taken("report")
    assert "All 70 that match…" in shown(q="SHOP:").text
    page = operator.post(url("release"), {"all": "yes", "back": "?q=SHOP:"})
    assert len(page.context["unchanged"]) == 70
    assert all(lock.held for lock in chosen)
    page = confirm(page, back="?q=SHOP:")
    assert "70 locks were released" in page.text
    assert page.address.endswith("/heldlock/?q=SHOP%3A")
    assert not any(lock.held for lock in chosen)
    assert other.held
    assert LogEntry.objects.filter(change_message__endswith="Reason: a test").count() >= 70


def test_of_more_than_two_hundred_the_first_are_broken(local, shown, operator, url, taken):
    taken(*(f"shop:{number:03}" for number in range(203)))
    assert "The first 200 of 203 that match…" in shown(q="shop:").text
    page = operator.post(url("release"), {"all": "yes", "back": "?q=shop:"})
    names = [row.info.name for row in page.context["unchanged"]]
    assert names == [f"shop:{number:03}" for number in range(200)]
    assert "3 more holds match the filter and stay." in page.content.decode()


def test_only_a_filter_chooses_all(local, shown, taken):
    taken("one")
    assert "that match…" not in shown().text


def test_nothing_is_broken_that_no_page_has_shown(local, operator, url, taken):
    (lock,) = taken("shop:1")
    data = {"all": "yes", "back": "?q=shop:", "confirmed": "yes", "reason": "a test"}
    response = operator.post(url("release"), data, follow=True)
    assert "No lock was selected." in response.content.decode()
    assert lock.held


def test_where_nothing_matches_nothing_is_asked(local, operator, url, taken):
    (lock,) = taken("one")
    response = operator.post(url("release"), {"all": "yes", "back": "?q=nothing"}, follow=True)
    assert "No lock was selected." in response.content.decode()
    assert lock.held


def test_what_is_taken_after_the_page_was_shown_is_not_broken(local, operator, url, confirm, taken):
    """The page has the holds that were found, by their tokens; not the filter."""
    taken("shop:1", "shop:2")
    page = operator.post(url("release"), {"all": "yes", "back": "?q=shop:"})
    with Lock("shop:3") as late:
        confirm(page, back="?q=shop:")
        assert late.held
