"""Force release: exactly the holds that were shown, with a reason, and with a trace."""

import json
import logging
import re

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.contrib.messages import get_messages

from distlock import LockLost, LockUnavailable
from distlock.admin.locks import HoldRef
from distlock.conf import locks
from distlock.models import HeldLock
from distlock.recipes import Queue
from distlock.types.lease import State


@pytest.fixture
def ask(operator, url):
    """``ask("a")``: select these locks of the default backend; the page that asks."""

    def choose(*names, **more):
        holds = [str(HoldRef.of(locks["default"].inspect(name))) for name in names]
        return operator.post(url("release"), {"hold": holds, **more})

    return choose


@pytest.fixture
def confirm(operator, url):
    """``confirm(page)``: send the form of that page, with a reason; what is said then."""

    def send(page, reason="it hangs", **more):
        holds = [str(hold.ref) for hold in page.context["unchanged"]]
        response = operator.post(
            url("release"), {"hold": holds, "confirmed": "yes", "reason": reason, **more}
        )
        response.said = [str(message) for message in get_messages(response.wsgi_request)]
        return response

    return send


def test_the_page_shows_exactly_the_selected_holds_and_does_nothing_yet(ask, local, taken):
    one, two, _ = taken("one", "two", "three", description="nightly")
    page = ask("one", "two")
    text = page.content.decode()
    for lock in (one, two):
        assert lock.name in text
        assert str(lock.token) in text
    assert "three" not in text
    assert str(local.inspect("one").owner.pid) in text
    assert "The old holder may still be working" in text
    assert "lock.check()" in text
    assert one.held
    assert two.held


def test_confirmed_they_are_released_and_their_holders_told(ask, confirm, local, taken):
    one, two, three = taken("one", "two", "three")
    response = confirm(ask("one", "two"))
    assert response.said == [
        "2 locks were released: <bdi>one</bdi>, <bdi>two</bdi> ",
    ]
    for lock in (one, two):
        assert not lock.held
        with pytest.raises(LockLost):
            lock.check()
    assert three.held


def test_it_says_when_holders_learn_of_it(sqlite, backend_settings, settings, ask, holder):
    settings.DISTLOCK = backend_settings("sqlite")
    holder("renewed", lease=27)
    text = ask("renewed").content.decode()
    assert "1 holder learns of it within 10 s" in text
    assert "not notice" not in text
    holder("not renewed", lease=3600, renew=False)
    text = ask("not renewed").content.decode()
    assert re.search("1 holder does not renew .* until the lease ends, in (59 min|1 h)", text)
    assert "learns of it within" not in text
    text = ask("renewed", "not renewed").content.decode()
    assert "1 holder learns of it within" in text
    assert "1 holder does not renew" in text


def test_nobody_is_to_be_told_of_a_lock_that_was_left(ask, local, taken):
    (lock,) = taken("left", at_least=600)
    lock.release()
    text = ask("left").content.decode()
    assert "The next waiter gets" in text
    assert "do not notice" not in text and "does not notice" not in text
    assert "may still be working" not in text


def test_a_reason_is_asked_for(ask, confirm, local, taken):
    (lock,) = taken("one")
    page = ask("one")
    for reason in ("", "   "):
        response = confirm(page, reason)
        assert response.status_code == 200
        assert "Please say why." in response.content.decode()
    assert confirm(page, "x" * 501).status_code == 200
    assert lock.held


def test_a_hold_that_changed_before_the_page_was_shown_is_not_released(operator, url, local, taken):
    (lock,) = taken("one")
    old = HoldRef.of(local.inspect("one"))
    lock.release()
    (lock,) = taken("one")
    page = operator.post(url("release"), {"hold": [str(old)]})
    text = page.content.decode()
    assert page.context["unchanged"] == []
    assert f"The hold with token {old.token} is over" in text
    assert str(lock.token) in text
    assert "There is nothing left to release." in text


def test_a_hold_that_changes_while_the_page_is_shown_is_not_released(ask, confirm, local, taken):
    one, two = taken("one", "two")
    page = ask("one", "two")
    one.release()
    (one,) = taken("one")
    response = confirm(page)
    assert [said.partition(":")[0] for said in response.said] == [
        "1 lock was released",
        "1 lock was not released, because it was no longer held under the token shown",
    ]
    assert one.held
    assert not two.held
    assert list(LogEntry.objects.values_list("object_id", flat=True)[:1]) == ["default:two"]


def test_a_lock_that_is_free_by_now_is_reported(operator, url, local, taken):
    (lock,) = taken("one")
    old = str(HoldRef.of(local.inspect("one")))
    lock.release()
    page = operator.post(url("release"), {"hold": [old]})
    assert "is over; the lock is free" in page.content.decode()


def test_it_is_written_down_with_owner_token_and_reason(ask, confirm, users, local, taken, caplog):
    (lock,) = taken("one")
    token, owner = lock.token, local.inspect("one").owner
    with caplog.at_level(logging.WARNING, "distlock"):
        confirm(ask("one"), "the host is on fire")
    entry = LogEntry.objects.first()
    assert entry.user == users["operator"]
    assert entry.content_type == ContentType.objects.get_for_model(
        HeldLock, for_concrete_model=False
    )
    assert (entry.object_id, entry.object_repr) == ("default:one", "one (default)")
    assert entry.action_flag == CHANGE
    message = f"Force released: token {token}, owner {owner}. Reason: the host is on fire"
    assert entry.get_change_message() == message
    assert f"'operator' in the admin, lock 'one' on 'default': {message}" in caplog.messages


def test_the_log_leads_to_the_page_of_the_lock_which_shows_it(ask, confirm, operator, local, taken):
    taken("one: a/b?c")
    confirm(ask("one: a/b?c"), "so that one can see it")
    address = LogEntry.objects.first().get_admin_url()
    page = operator.get(address, follow=True)
    assert page.redirect_chain[-1][0].startswith("/admin/distlock/heldlock/lock/?backend=default")
    assert "so that one can see it" in page.content.decode()


def test_the_log_is_in_the_sites_language_whoever_is_at_work(
    ask, confirm, operator, local, taken, use_language
):
    use_language(operator, "de")
    taken("one")
    page = ask("one")
    assert "Begründung" in page.content.decode()
    confirm(page)
    assert LogEntry.objects.first().change_message.startswith("Force released: token")


def test_one_comes_back_to_the_same_list(ask, confirm, operator, local, taken):
    taken("one")
    page = ask("one", back="?q=on&state=held&nonsense=1")
    assert page.context["back"].endswith("/?q=on&state=held")
    response = confirm(page, back="?q=on&state=held")
    assert "/heldlock/lock/?backend=default&name=one&" in response.headers["Location"]
    lock = operator.get(response.headers["Location"]).content.decode()
    assert 'href="/admin/distlock/heldlock/?q=on&amp;state=held">Back to the list' in lock
    taken("first one", "another one")
    response = confirm(ask("first one", "another one"), back="?q=on&state=held")
    assert response.headers["Location"].endswith("/heldlock/?q=on&state=held")


@pytest.mark.parametrize("back", ["https://elsewhere.example/", "//elsewhere.example", "?after=x"])
def test_one_is_never_sent_elsewhere(ask, confirm, operator, local, taken, url, back):
    taken("one", "two")
    assert confirm(ask("one", "two"), back=back).headers["Location"] == url("list") + "?"
    page = operator.get(url("lock"), {"backend": "default", "name": "one", "back": back})
    assert page.context["back"] == url("list") + "?"


@pytest.mark.parametrize(
    "holds",
    [
        [],
        ["nonsense"],
        ["[]"],
        ['["default", "1", "name"]'],
        ['["default", 1, ""]'],
        ['["default", 1, ' + '"' + "x" * 565 + '"]'],
        ["[" * 5000],
        ['["default", 1, "\\ud800"]'],
        ['["default", 1, "a\\u0000b"]'],
    ],
)
def test_what_names_no_holds_is_refused(operator, url, local, taken, holds):
    (lock,) = taken("x")
    response = operator.post(url("release"), {"hold": holds, "confirmed": "yes", "reason": "a"})
    assert response.status_code == 302
    assert lock.held


def test_a_delivery_of_a_queue_is_no_hold_of_a_lock(operator, url, local):
    letters = Queue("letters")
    letters.put("to ada")
    with letters.get() as delivery:
        hold = json.dumps(["default", delivery.token, "letters", "queue"])
        operator.post(url("release"), {"hold": [hold], "confirmed": "yes", "reason": "a"})
        assert letters.info().deliveries


def test_a_hundred_at_once_can_be_released(ask, confirm, local, taken):
    names = [f"many:{number:03}" for number in range(100)]
    held = taken(*names)
    assert confirm(ask(*names)).said[0].startswith("100 locks were released")
    assert not any(lock.held for lock in held)


def test_a_backend_that_there_is_not(operator, url, local):
    holds = ['["elsewhere", 1, "x", "lock"]']
    page = operator.post(url("release"), {"hold": holds})
    assert "DISTLOCK" in page.content.decode()
    response = operator.post(url("release"), {"hold": holds, "confirmed": "yes", "reason": "a"})
    said = [str(message) for message in get_messages(response.wsgi_request)]
    assert said[0].startswith("1 lock was not released, because its backend could not be reached")


def test_an_expired_hold_can_be_released_too(ask, confirm, local, expired):
    expired("gone")
    assert confirm(ask("gone")).said[0].startswith("1 lock was released")
    assert local.inspect("gone").state is State.FREE


# A backend that cannot be asked


@pytest.fixture
def behind_a_network(proxied, backend_settings, settings, taken):
    """Locks in a database that can be cut off."""
    entry = backend_settings("mariadb")
    network = proxied("mariadb")
    settings.DISTLOCK = entry
    held = taken("one", "two")
    yield network, held
    network.heal()
    locks.close_all()


def test_a_backend_that_is_gone_at_the_last_moment(ask, confirm, behind_a_network):
    network, _ = behind_a_network
    page = ask("one", "two")
    network.refuse()
    with pytest.raises(LockUnavailable):
        locks["default"].inspect("one")  # it knows by now that its session is closed
    response = confirm(page)
    (said,) = response.said
    assert said.startswith("2 locks were not released, because their backend could not be reached")


@pytest.mark.slow
def test_an_answer_that_is_lost_is_told_as_such_and_written_down(ask, confirm, behind_a_network):
    network, _ = behind_a_network
    page = ask("one", "two")
    network.drop_replies()
    said = confirm(page).said
    assert re.match(
        "(1 lock|2 locks) may have been released or not, because no answer came", said[0]
    )
    assert "Release of token" in LogEntry.objects.first().change_message


def test_a_trace_that_cannot_be_written_is_told(ask, confirm, local, taken, caplog, monkeypatch):
    """The hold is broken by then; the site's own log still says who did it."""
    from django.db import OperationalError

    def fail(*args, **kwargs):
        raise OperationalError("the disk is full")

    (lock,) = taken("one")
    page = ask("one")
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "distlock"):
        patched.setattr(LogEntry, "save", fail)
        response = confirm(page)
    assert not lock.held
    assert any(
        said.startswith("This could not be written to the admin’s log") for said in response.said
    )
    assert any("'operator' in the admin, lock 'one'" in line for line in caplog.messages)


def test_a_request_in_a_transaction_releases_all_the_same(
    ask, confirm, sqlite, backend_settings, settings, taken
):
    """On SQLite the sessions of the locks would wait for the transaction of the request.

    They would do so in vain, however long they wait. So they may wait long here: what a test before
    has written may still be on its way to the disk of a busy machine, and keeps all others out.
    """
    from tests.databases import publish

    settings.DISTLOCK = backend_settings("sqlite", OPTIONS={"timeout": 60})
    publish("default", {"ATOMIC_REQUESTS": True})
    try:
        (lock,) = taken("one")
        (said,) = confirm(ask("one")).said
        assert said.startswith("1 lock was released")
        assert locks["default"].inspect("one").state is State.FREE
    finally:
        publish("default", {"ATOMIC_REQUESTS": False})


def test_a_backend_that_fails_as_nobody_thought_of(ask, confirm, local, taken, monkeypatch, caplog):
    """Nobody knows then whether the hold was broken: it is told, and written down."""

    def fail(*args):
        raise ZeroDivisionError("a mistake")

    taken("one")
    page = ask("one")
    monkeypatch.setattr(local, "force_release", fail)
    (said,) = confirm(page).said
    assert said.startswith("1 lock may have been released or not")
    assert "without an answer" in LogEntry.objects.first().change_message
    assert "a mistake" in caplog.text
    assert "failed when the admin released a lock" in caplog.text
