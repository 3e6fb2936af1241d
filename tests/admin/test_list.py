"""The list of held locks: all backends at once, filters, order, pages."""

import re
import threading
import time
from urllib.parse import parse_qs

import pytest
from django.utils import timezone

from distlock.admin.overview import Query
from distlock.conf import locks
from distlock.fan_out import MAX_THREADS, TIMEOUT, call_backends
from distlock.types.query import Counts, Page
from tests.contract.watch import eventually

LOCAL = "distlock.backends.local.LocalBackend"


@pytest.fixture
def three(settings):
    """Three backends in this process; their aliases."""
    settings.DISTLOCK = {alias: {"BACKEND": LOCAL} for alias in ("default", "beta", "alpha")}
    yield ["default", "beta", "alpha"]
    locks.close_all()


@pytest.fixture
def show(operator, url):
    """``show(q="a")``: the list; the locks on it as ``(backend, name)``."""

    def get(address="", **query):
        page = operator.get(url("list") + address, query or None)
        assert page.status_code == 200
        page.overview = page.context["overview"]
        page.locks = [(row.info.using, row.info.name) for row in page.overview.rows]
        page.text = page.content.decode()
        return page

    return get


def test_locks_of_all_backends_stand_together_by_name(three, show, taken):
    for alias, names in {"default": "ace", "beta": "bd", "alpha": "af"}.items():
        taken(*names, using=alias)
    assert show().locks == [
        ("alpha", "a"),
        ("default", "a"),
        ("beta", "b"),
        ("default", "c"),
        ("beta", "d"),
        ("default", "e"),
        ("alpha", "f"),
    ]
    assert show().overview.found == 7


def test_a_row_shows_what_is_known_of_a_lock(local, show, taken):
    (lock,) = taken("invoice:42", description="charging")
    page = show()
    info = local.inspect("invoice:42")
    for shown in ("invoice:42", "charging", str(lock.token), str(info.owner.pid)):
        assert shown in page.text
    assert re.search(r"9 min 5\d s", page.text)
    assert info.owner.host in page.text
    assert f"{timezone.localtime(info.until):%H:%M:%S%z}"[:-2] in page.text


@pytest.mark.slow
@pytest.mark.parametrize("order", ["name", "age"])
@pytest.mark.parametrize("number", [49, 50, 51, 100, 107])
def test_pages_go_forth_and_back_over_all_backends(three, show, taken, number, order):
    held = [taken(f"lock:{place // 2:04}", using=three[place % 3])[0] for place in range(number)]
    pages = [show(order=order)]
    while pages[-1].overview.next:
        pages.append(show(pages[-1].overview.next))
    found = [each for page in pages for each in page.locks]
    assert sorted(found) == sorted((lock.using, lock.name) for lock in held)
    if order == "name":
        assert [name for _, name in found] == sorted(lock.name for lock in held)
    else:
        assert found == [(lock.using, lock.name) for lock in held]
    assert [len(page.locks) for page in pages[:-1]] == [50] * (len(pages) - 1)
    page = pages[-1]
    for before in reversed(pages[:-1]):
        page = show(page.overview.previous)
        assert page.locks == before.locks
    assert not page.overview.previous
    assert page.overview.next or len(pages) == 1


def test_a_page_of_which_nothing_is_left_leads_to_the_first(local, show, taken):
    taken("a")
    page = show("?after=default:0:zzz")
    assert page.locks == []
    assert "Nothing is left on this page" in page.text


@pytest.mark.parametrize("place", ["after", "before"])
def test_a_page_without_locks_that_could_be_read_leads_to_the_first(
    local, show, monkeypatch, place
):
    """ZooKeeper may have more names of free locks than can be looked at in time."""
    unread = Page((), more=True, found=3, counts=Counts(held=3), hosts={}, note="Too many names.")
    monkeypatch.setattr(local, "page", lambda query, deadline: unread)
    page = show(**{place: "default:0:b"})
    assert (page.locks, page.overview.next, page.overview.previous) == ([], "", "?")
    assert "Too many names." in page.text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"q": "GO"}, ["gone"]),
        ({"backend": "beta"}, ["ba"]),
        ({"backend": "no such"}, ["a", "b", "ba", "gone"]),
        ({"state": "expired"}, ["gone"]),
        ({"state": "held"}, ["a", "b", "ba"]),
        ({"state": "no such"}, ["a", "b", "ba", "gone"]),
        ({"held": "3600"}, []),
        ({"held": "17"}, ["a", "b", "ba", "gone"]),
        ({"host": "elsewhere"}, []),
        ({"after": "nonsense"}, ["a", "b", "ba", "gone"]),
        ({"after": "default:x:a", "order": "nonsense"}, ["a", "b", "ba", "gone"]),
        ({"after": "default:0:a"}, ["b", "ba", "gone"]),
        ({"before": "default:0:b"}, ["a"]),
        ({"q": "\0", "host": "\0", "after": "default:0:\0"}, ["a", "b", "ba", "gone"]),
        ({"after": "default:99999999999999999999999:a"}, ["a", "b", "ba", "gone"]),
    ],
)
def test_filters_and_nonsense(three, show, taken, expired, query, found):
    taken("a", "b")
    taken("ba", using="beta")
    expired("gone")
    assert [name for _, name in show(**query).locks] == found


def test_the_strip_counts_by_backend_whatever_is_filtered(three, show, taken, expired):
    taken("a", "b")
    taken("c", using="beta")
    expired("d")
    taken("brief", lease=6)
    page = show(q="nothing like it")
    counts = {card.alias: card.counts for card in page.overview.cards}
    assert (counts["default"].held, counts["default"].expiring, counts["default"].expired) == (
        3,
        0,
        1,
    )
    assert counts["beta"].held == 1
    assert counts["alpha"].held == 0
    assert "No such lock" in page.text


def test_without_any_lock_it_says_so(local, show):
    page = show()
    assert "All locks are free" in page.text
    assert "dl-table" not in page.text


def test_addresses_keep_the_filters(three, show):
    page = show(q="a&b", backend="beta", state="held", host="h", held="60", order="age")
    query = page.context["query"]
    assert parse_qs(query.url()[1:]) == {
        "q": ["a&b"],
        "backend": ["beta"],
        "state": ["held"],
        "host": ["h"],
        "held": ["60"],
        "order": ["age"],
    }
    assert Query.parse(page.wsgi_request.GET, three) == query


def test_numbers_are_not_cut_into_thousands(local, show, taken, settings):
    settings.USE_THOUSAND_SEPARATOR = True
    (lock,) = taken("a")
    assert f'dl-mono">{lock.token}</td>' in show().text


# Backends that do not answer


def test_a_backend_that_is_down_is_a_card_and_the_others_are_shown(settings, show, taken):
    settings.DISTLOCK = {
        "default": {"BACKEND": LOCAL},
        "down": {
            "BACKEND": "distlock.backends.database.DatabaseBackend",
            "OPTIONS": {"database": "postgresql"},
        },
        "wrong": {"BACKEND": "no.such.Backend"},
    }
    from tests.databases import moved

    taken("a")
    with moved("postgresql", 1):
        page = show()
    assert page.locks == [("default", "a")]
    down, wrong = page.overview.cards[1:]
    assert down.counts is None
    assert "refused" in down.problem
    assert "cannot import BACKEND" in wrong.problem
    assert "Cannot be asked" in page.text
    assert "without the backends that do not answer" in page.text
    locks.close_all()


def test_where_nothing_could_be_asked_nothing_is_claimed(settings, show):
    # The page shows what this process holds, and earlier tests may have left locks in "default".
    settings.DISTLOCK = {"wrong": {"BACKEND": "no.such.Backend"}}
    page = show()
    assert "All locks are free" not in page.text
    assert "0 of 0" not in page.text
    assert "locks held in the others are unknown" in page.text


def test_a_setting_that_is_wrong_altogether_is_no_error_page(settings, show):
    settings.DISTLOCK = "nonsense"
    page = show()
    assert "DISTLOCK must be a dictionary" in page.text
    assert "All locks are free" not in page.text


def test_silence_costs_two_seconds_and_hides_nothing_else(
    usual_timeout, proxied, backend_settings, settings, show, taken
):
    """The network swallows everything; the locks of this process are shown as it sees them."""

    def own(name):
        """Whether it is of this test: others may have left locks that were lost."""
        return name in ("mine", "here")

    network = proxied("mariadb")
    settings.DISTLOCK = {
        **backend_settings("mariadb", OPTIONS={"timeout": 30}),
        "local": {"BACKEND": LOCAL},
    }
    taken("mine", lease=60)
    taken("here", using="local")
    assert {row.status for row in show().overview.rows} == {"held"}
    network.silence()
    usual_timeout()

    def asked():
        """Ask for a page; one that the local backend has not answered for is no use."""
        began = time.monotonic()
        page = show(retry="1")
        assert TIMEOUT - 0.1 <= time.monotonic() - began < 10
        return page.overview.cards[1].counts and page

    page = eventually(asked)
    assert [(row.info.name, row.status) for row in page.overview.rows if own(row.info.name)] == [
        ("here", "held"),
        ("mine", "suspended"),
    ]
    assert page.overview.cards[0].counts is None
    assert "answer" in page.overview.cards[0].problem
    network.refuse()  # which is answered at once
    assert [name for _, name in show(state="suspended").locks if own(name)] == ["mine"]
    assert show(state="expired").locks == []
    network.heal()
    locks.close_all()


def test_many_looks_at_a_silent_backend_do_not_pile_up(local):
    answer = threading.Event()
    began = []

    def hang(backend, deadline):
        began.append(1)
        answer.wait(30)

    def look():
        answer = call_backends(["default"], hang, timeout=0.05)["default"]
        assert "No answer" in answer.problem
        return len(began) >= MAX_THREADS

    eventually(look)  # on a busy machine some are given up before a thread has begun with them
    for _ in range(3):
        look()
    answer.set()
    eventually(lambda: not call_backends(["default"], lambda *args: None)["default"].problem)
    assert len(began) == MAX_THREADS


def test_a_backend_that_no_thread_can_be_had_for_is_shown_as_such(
    local, show, taken, settings, refuse
):
    settings.DISTLOCK = {**settings.DISTLOCK, "unasked": {"BACKEND": LOCAL}}
    taken("here")
    refuse("unasked")
    page = show()
    assert [row.info.name for row in page.overview.rows] == ["here"]
    assert ["thread" in card.problem for card in page.overview.cards] == [False, True]


def test_errors_of_a_backend_nobody_thought_of_are_shown_and_logged(
    local, show, monkeypatch, caplog
):
    def fail(*args):
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(local, "page", fail)
    page = show()
    assert "a mistake" in page.text
    assert "failed when it was asked" in caplog.text


# Content security policy


def test_no_page_has_script_or_style_in_it(three, show, operator, url, taken, expired):
    (lock,) = taken("a")
    expired("b")
    from distlock.admin.locks import HoldRef

    pages = [
        show().text,
        operator.get(url("lock"), {"backend": "default", "name": "a"}).content.decode(),
        operator.post(
            url("release"), {"hold": [str(HoldRef.of(locks["default"].inspect("a")))]}
        ).content.decode(),
        operator.post(url("sweep")).content.decode(),
    ]
    for page in pages:
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
        assert all('src="' in tag for tag in re.findall(r"<script[^>]*>", page))
