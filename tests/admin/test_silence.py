"""A backend that accepts and never answers: it costs one page two seconds, and then none."""

import time

import pytest

from distlock.conf import locks
from distlock.fan_out import TIMEOUT
from tests.contract.watch import eventually

pytestmark = pytest.mark.once

LOCAL = "distlock.backends.local.LocalBackend"
#: Less than TIMEOUT, and more than a busy machine needs for a page.
SOON = 1.5


@pytest.fixture
def network(taken, proxied, backend_settings, settings, usual_timeout):
    """The way to the database of the backend "default"; there is a local one beside it.

    It is healed before what was ``taken`` is released.
    """
    network = proxied("mariadb")
    settings.DISTLOCK = {
        **backend_settings("mariadb", OPTIONS={"timeout": 30}),
        "local": {"BACKEND": LOCAL},
    }
    usual_timeout()
    yield network
    network.heal()
    locks.close_all()


@pytest.fixture
def show(operator, url):
    """``show(q="a")``: the list, and in ``page.seconds`` how long it took."""

    def get(page="list", **query):
        began = time.monotonic()
        page = operator.get(url(page), query)
        page.seconds = time.monotonic() - began
        page.text = page.content.decode()
        return page

    return get


def cards(page):
    return {card.alias: card for card in page.context["overview"].cards}


def fastest(ask):
    """The fastest of some pages: one alone may be slow because the machine is."""
    return min(ask().seconds for _ in range(3))


def known(show):
    """Let a page show the figures of the backend; on a busy machine, not each page has them."""
    return eventually(lambda: cards(show(retry="1"))["default"].counts)


@pytest.mark.slow
def test_a_silent_backend_is_waited_for_once(network, show, taken):
    taken("there", lease=600)
    taken("here", using="local")
    assert known(show).held == 1
    network.silence()
    found_out = show()
    assert found_out.seconds >= TIMEOUT - 0.1
    assert fastest(show) < SOON
    page = eventually(lambda: cards(page := show())["local"].counts and page)
    names = [row.info.name for row in page.context["overview"].rows]
    # Others may have left locks of their names that were lost.
    assert [name for name in names if not name.startswith("test_")] == ["here", "there"]
    assert cards(page)["local"].counts.held == 1
    assert fastest(lambda: show("lock", backend="default", name="there")) < SOON


def test_its_last_known_figures_are_shown_with_their_age(network, show, taken):
    taken("there", lease=600)
    assert known(show).held == 1
    network.silence()
    for page in (show(), show()):
        silent = cards(page)["default"]
        assert silent.counts is None
        assert silent.last_counts.held == 1
        assert "Last known, " in page.text
        assert "The locks held there are unknown" in page.text
    eventually(lambda: cards(show())["default"].last_age > silent.last_age)


def test_of_one_that_has_never_answered_nothing_is_known(network, show):
    network.silence()
    page = show()
    assert cards(page)["default"].last_counts is None
    assert "Last known" not in page.text


@pytest.mark.slow
def test_anyone_can_have_it_asked_again(network, show):
    network.silence()
    show()
    assert 'href="?retry=1"' in show().text
    assert show(retry="1").seconds >= TIMEOUT - 0.1
    page = show("lock", backend="default", name="a")
    assert "?backend=default&amp;name=a&amp;retry=1" in page.text


def test_once_it_answers_again_it_is_seen(network, show, taken):
    taken("there", lease=600)
    network.silence()
    assert cards(show())["default"].counts is None
    network.heal()
    answered = eventually(lambda: cards(show())["default"].counts)
    assert answered.held == 1


@pytest.mark.slow
def test_what_was_silent_is_waited_for_again_after_a_while(network, show, monkeypatch):
    monkeypatch.setattr("distlock.fan_out.SILENT_FOR", 0.0)
    network.silence()
    assert show().seconds >= TIMEOUT - 0.1
    assert show().seconds >= TIMEOUT - 0.1


def test_no_page_waits_for_longer(network, operator, taken):
    """Whatever the database that has the locks does, and on whichever page."""
    network.silence()
    for address in ("", "heldlock/", "heldlock/lock/?backend=default&name=a", "databaselock/"):
        began = time.monotonic()
        operator.get(f"/admin/distlock/{address}")
        assert time.monotonic() - began < 8
