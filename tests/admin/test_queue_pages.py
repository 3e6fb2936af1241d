"""The page of a queue: items in pages, a search, and dead letters in bulk."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.urls import reverse

from distlock.exceptions import LockUnavailable
from distlock.models import AuditEntry
from distlock.recipes import Queue, queue_actions
from distlock.recipes.description import Ref
from tests.admin.test_coordination import client_with, one  # noqa: F401 - a fixture

pytestmark = pytest.mark.once

RIGHTS = "view_queue", "retry_dead_letter", "release_delivery", "purge_queue"


@pytest.fixture
def letters(local):
    return Queue("letters", max_deliveries=1)


@pytest.fixture
def client(client_with):  # noqa: F811
    return client_with(*RIGHTS)


def bury(queue, *bodies, reason=""):
    """Let these be dead letters; return their numbers."""
    numbers = []
    for body in bodies:
        numbers.append(queue.put(body))
        queue.get().nack(reason=reason)
    return numbers


def look(client, **query):
    url, data = one("queue", "letters")
    page = client.get(url, {**data, **query})
    assert page.status_code == 200
    return page.content.decode()


def shown(page):
    """Return the numbers of the items on a page."""
    found = re.findall(r'<a class="dl-mono dl-whole" href="[^"]*item=(\d+)">', page)
    return list(map(int, found))


def follow(client, page, rel):
    """Return the page that a link leads to."""
    address = re.search(rf'href="(\?[^"]*)" rel="{rel}"', page)
    return client.get(one("queue")[0] + address[1].replace("&amp;", "&")).content.decode()


def do(client, action, *, token=10**9, target="selected", **more):
    """Confirm an action; return the page that says what was done."""
    data = {"ref": str(Ref("default", "letters", token, target)), **more}
    data |= {"confirmed": "yes", "reason": "a test"}
    url = reverse(f"admin:distlock_queue_{action}")
    page = client.post(url, data, follow=True).content.decode()
    return re.sub(r"\s+", " ", re.search(r'messagelist">(.*?)</ul>', page, re.S)[1])


def test_each_state_is_in_pages_that_go_on_and_back(letters, client):
    numbers = [number for start in range(5) for number in letters.put_many([*range(12)])]
    first = look(client, state="ready")
    assert shown(first) == numbers[:-26:-1]
    second = follow(client, first, "next")
    assert shown(second) == numbers[-26:-51:-1]
    last = follow(client, second, "next")
    assert shown(last) == numbers[9::-1]
    assert 'rel="next"' not in last
    assert shown(follow(client, last, "prev")) == shown(second)
    assert shown(follow(client, second, "prev")) == shown(first)
    oldest = look(client, state="ready", order="oldest")
    assert shown(oldest) == numbers[:25]
    assert shown(follow(client, oldest, "next")) == numbers[25:50]


def test_the_page_begins_with_what_is_wrong(letters, client):
    def tab():
        found = re.search(r'<a href="[?][^"]*" aria-current="page">(.*?) <', look(client))
        return found[1]

    letters.put("a")
    assert tab() == "Ready"
    delivery = letters.get()
    assert tab() == "Deliveries"
    delivery.nack()
    assert tab() == "Dead letters"


def test_the_body_and_the_reason_are_searched(letters, client):
    ada, *_ = bury(letters, {"to": "ada"}, {"to": "bob"}, reason="no such mailbox")
    other = bury(letters, {"to": "eve"}, reason="SMTP is down")
    assert shown(look(client, q="ADA")) == [ada]
    assert shown(look(client, q="smtp")) == other
    assert "Nothing matches." in look(client, q="nobody")
    assert "1 found in 3 of 3 items" in look(client, q="ada")


@pytest.mark.parametrize("text", ["\0", "\u202e", "x" * 5000, "%"])
@pytest.mark.parametrize("where", ["q", "state", "order", "after", "before", "item"])
def test_whatever_an_address_says_there_is_a_page(letters, client, where, text):
    bury(letters, "a")
    look(client, **{where: text})


def test_an_item_has_a_page_with_its_whole_body(letters, client):
    (number,) = bury(letters, {"to": "x" * 5000, "lines": [1, 2]}, reason="no such mailbox")
    page = look(client, item=number)
    assert "x" * 5000 in page
    assert "no such mailbox" in page
    assert reverse("admin:distlock_queue_retry") in page
    assert "x" * 5000 not in look(client)
    assert "It is not in the queue" in look(client, item=number + 1)


def test_the_page_of_a_delivery_names_its_consumer_and_token(letters, client):
    number = letters.put("a")
    delivery = letters.get()
    page = look(client, item=number)
    assert str(delivery.token) in page
    assert reverse("admin:distlock_queue_release") in page
    assert reverse("admin:distlock_queue_retry") not in page
    delivery.ack()


def test_reasons_are_grouped_without_what_varies(letters, client):
    bury(letters, "a", reason="no mailbox 'ada@x.org' after 3 tries")
    bury(letters, "b", reason="no mailbox 'bob@x.org' after 14 tries")
    bury(letters, "c", reason="down")
    page = look(client)
    assert "no mailbox … after … tries" in page
    done = do(client, "retry", target="reason:no mailbox … after … tries")
    assert "Dead letters that were put back: 2." in done
    assert [one.body for one in letters.dead()] == ["c"]


def test_some_are_selected_and_put_back(letters, client):
    numbers = bury(letters, "a", "b", "c")
    done = do(client, "retry", item=[numbers[0], numbers[2]])
    assert "Dead letters that were put back: 2." in done
    assert [one.body for one in letters.page("ready").items] == ["a", "c"]
    assert "a test" in LogEntry.objects.latest("action_time").change_message


def test_with_nothing_selected_it_says_so(letters, client):
    bury(letters, "a")
    url = reverse("admin:distlock_queue_retry")
    page = client.post(url, {"ref": str(Ref("default", "letters", 9, "selected"))}).content.decode()
    assert "Nothing is selected." in page


def test_all_that_match_are_discarded(letters, client):
    bury(letters, "ada", "bob", "adam")
    assert "Items that were discarded: 2." in do(client, "discard", target="matching:ADA")
    assert [one.body for one in letters.dead()] == ["bob"]


def test_all_are_put_back_until_the_queue_is_full(letters, client):
    bury(letters, *range(20))
    letters.resize(15)
    done = do(client, "retry", target="dead")
    assert "Dead letters that were put back: 15." in done
    assert "is full" in done
    assert 'class="warning"' in done
    assert letters.info().dead == 5
    assert "Nothing was done" in do(client, "retry", target="dead")


@pytest.mark.parametrize(("more", "seen"), [((), False), (("view_error_text",), True)])
def test_the_error_that_ends_a_change_in_bulk_is_only_for_those_who_may_see_it(
    letters,
    client_with,  # noqa: F811
    monkeypatch,
    more,
    seen,
):
    bury(letters, *range(4))
    monkeypatch.setattr(queue_actions, "MOST_LETTERS", 2)
    discard, calls = Queue.discard, []

    def fail_later(queue, *args, **options):
        calls.append(queue)
        if len(calls) > 1:
            raise LockUnavailable("no answer from db7.internal:5432")
        return discard(queue, *args, **options)

    monkeypatch.setattr(Queue, "discard", fail_later)
    done = do(client_with(*RIGHTS, *more), "discard", target="dead")
    assert "discarded: 2." in done
    assert 'class="warning"' in done
    assert ("db7.internal" in done) == seen
    assert ("The text of the error is shown only to" in done) != seen


def test_what_has_died_since_it_was_shown_is_left_alone(letters, client):
    first, _ = bury(letters, "a", "b")
    assert "put back: 1." in do(client, "retry", target="dead", token=first)
    assert [one.body for one in letters.dead()] == ["b"]


def test_what_is_ready_is_discarded(letters, client):
    bury(letters, "a")
    letters.put_many("bc")
    assert "Items that were discarded: 2." in do(client, "discard", target="ready", token=0)
    assert (letters.info().ready, letters.info().dead) == (0, 1)


def test_a_change_in_bulk_ends_in_time_and_says_so(letters, client, monkeypatch):
    bury(letters, *range(20))
    monkeypatch.setattr(queue_actions, "_BULK_SECONDS", -1.0)
    assert "Nothing was done" in do(client, "retry", target="dead")
    assert letters.info().dead == 20


def test_what_is_done_is_in_the_audit_log_once_with_who_did_it(letters, client):
    AuditEntry.objects.all().delete()
    numbers = bury(letters, *range(20))
    do(client, "discard", item=numbers[:2])
    do(client, "retry", target="dead")
    user = User.objects.get(username__startswith="someone").username
    assert [(entry.who, entry.text) for entry in AuditEntry.objects.order_by("pk")] == [
        (user, "Discarded: 2 of 2 dead letters. Reason: a test"),
        (user, "Put back: 18 of 18 dead letters. Reason: a test"),
    ]
    assert "Put back: 18 of 18" in look(client)
