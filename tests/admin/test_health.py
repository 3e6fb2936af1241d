"""The front page of the admin: the health of each backend, and what is wrong."""

import re
import time

import pytest
from django.contrib import admin
from django.urls import reverse

from distlock import fan_out
from distlock.admin import overview, views
from distlock.conf import locks
from distlock.models import HeldLock
from tests.contract.watch import eventually
from tests.servers.process import free_port

LOCAL = "distlock.backends.local.LocalBackend"
NOT_FOR_ALL = "The text of the error is shown only to users who may see the texts of errors."


@pytest.fixture
def front(client_of):
    """``front("viewer")``: the text of the section about locks; "" if there is none."""

    def text(user="operator", page="admin:index", **arguments):
        shown = client_of(user).get(reverse(page, **arguments)).content.decode()
        found = re.search(r'<section class="dl .*?</section>', shown, re.DOTALL)
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", found[0])) if found else ""

    return text


@pytest.fixture
def unreachable(settings, nodes_nowhere):
    settings.DISTLOCK = {
        "default": {"BACKEND": LOCAL},
        "zookeeper": {
            "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
            "LOCATION": nodes_nowhere,
        },
    }
    yield nodes_nowhere
    locks.close_all()


@pytest.fixture
def nodes_nowhere():
    """An address at which nobody listens."""
    return f"127.0.0.1:{free_port()}"


def test_each_backend_is_shown_with_what_is_in_it(local, front, taken):
    taken("one", "two")
    text = front()
    assert "default Local" in text
    assert "Held: 2" in text
    assert "No lease ends soon or has expired." in text


def test_the_page_of_the_app_shows_it_too(local, front, taken):
    taken("one")
    assert "Held: 1" in front(page="admin:app_list", kwargs={"app_label": "distlock"})


def test_leases_that_have_ended_and_end_soon_are_wrong(local, front, taken, expired):
    expired("gone")

    def soon_or_over():
        text = front()
        return text if "Ends soon: 1" in text or "Held: 0" in text else ""

    # While the machine stands still a short one may end before it is shown.
    for ended, lease in (1, 3), (2, 30):
        taken(f"soon-{lease}", lease=lease, renew=False)
        text = eventually(soon_or_over)
        if "Ends soon: 1" in text:
            assert f"Expired: {ended}" in text
            break
    assert "Ends soon: 1" in text
    assert "No lease ends soon or has expired." not in text


@pytest.mark.parametrize("user", ["staff", "blind", "observer"])
def test_who_may_not_see_locks_sees_nothing_and_asks_nobody(local, front, user, monkeypatch):
    monkeypatch.setattr(overview, "call_backends", lambda *args, **more: pytest.fail("asked"))
    assert front(user) == ""


def test_a_backend_that_cannot_be_reached_is_shown_and_others_are_not_held_up(
    unreachable, front, usual_timeout
):
    usual_timeout()
    began = time.monotonic()
    text = front()
    assert time.monotonic() - began < fan_out.TIMEOUT + 6
    assert "zookeeper ZooKeeper Cannot be asked:" in text
    assert "default Local answered in" in text


def test_the_front_page_asks_the_backends_once_in_some_seconds(local, front, taken, monkeypatch):
    monkeypatch.setattr(views, "HEALTH_SECONDS", 600.0)
    monkeypatch.setattr(views, "_health", {})
    assert "Held: 0" in front()
    taken("one")
    assert "Held: 0" in front()


def test_a_setting_that_is_wrong_is_said(front, settings):
    settings.DISTLOCK = {"other": {"BACKEND": "no.such.Backend"}}
    assert "other Cannot be asked: DISTLOCK[" in front()
    settings.DISTLOCK = ["default"]
    text = front()
    assert "The setting DISTLOCK is wrong." in text
    assert "DISTLOCK" in text.replace("The setting DISTLOCK is wrong.", "")
    assert NOT_FOR_ALL in front("viewer")


def test_a_site_that_draws_its_front_page_by_itself_goes_on_to():
    site = admin.AdminSite("own")
    site.index_template = "own/index.html"
    admin.site._registry[HeldLock].__class__(HeldLock, site)
    assert site.index_template == "own/index.html"


# A user who may only look does not see addresses


@pytest.fixture
def pages(url):
    """The pages on which a backend that does not answer is shown."""
    return [
        (reverse("admin:index"), {}),
        (url("list"), {}),
        (url("lock"), {"backend": "zookeeper", "name": "one"}),
    ]


@pytest.fixture
def stopped(backend_settings, settings, proxied, taken):
    """A database that refuses connections; and the port."""
    network = proxied("mariadb")
    settings.DISTLOCK = {
        "default": {"BACKEND": LOCAL},
        "zookeeper": backend_settings("mariadb")["default"],
    }
    network.refuse()
    yield str(network.port)
    network.heal()
    locks.close_all()


def test_who_may_only_look_sees_no_address_and_port(stopped, pages, client_of):
    for address, query in pages:
        text = client_of("viewer").get(address, query).content.decode()
        assert "Cannot be asked" in text, address
        assert NOT_FOR_ALL in text, address
        assert "127.0.0.1" not in text, address
        assert stopped not in text, address


def test_who_may_see_the_texts_of_errors_does(stopped, pages, client_of):
    for address, query in pages:
        text = client_of("operator").get(address, query).content.decode()
        assert "127.0.0.1" in text, address
        assert NOT_FOR_ALL not in text, address


@pytest.mark.parametrize("user", ["breaker", "operator"])
def test_what_is_said_after_a_break_that_failed(stopped, client_of, url, user):
    client = client_of(user)
    data = {"hold": ['["zookeeper", 1, "one", "lock"]'], "confirmed": "yes", "reason": "a test"}
    page = client.post(url("release"), data, follow=True).content.decode()
    assert "1 lock was not released, because its backend could not be reached" in page
    assert ("127.0.0.1" in page) is (user == "operator")
    page = client.post(url("release"), {"hold": data["hold"]})
    assert ("127.0.0.1" in page.content.decode()) is (user == "operator")
