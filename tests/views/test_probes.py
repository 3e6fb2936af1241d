"""Views for the probes of a deployment: whether the backends answer, and who leads."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import override_settings

from distlock.conf import locks
from distlock.recipes import Election
from tests.contract.watch import eventually

LOCAL = "distlock.backends.local.LocalBackend"
pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def site(settings):
    settings.ROOT_URLCONF = "tests.views.urls"
    yield
    locks.close_all()


@pytest.fixture
def with_a_database(backend_settings, settings):
    """PostgreSQL beside a backend that always answers."""
    entry = backend_settings("postgresql")["default"]
    settings.DISTLOCK = {"default": {"BACKEND": LOCAL}, "served": entry}


def test_it_is_ready_where_all_backends_answer(client, with_a_database):
    answer = client.get("/ready")
    assert answer.status_code == 200
    assert answer.json()["ok"] is True
    assert [*answer.json()["backends"]] == ["default", "served"]
    assert "no-store" in answer["Cache-Control"]


def test_it_is_not_ready_where_one_is_gone(client, proxied, with_a_database, caplog):
    proxied("postgresql").refuse()
    answer = client.get("/ready")
    assert answer.status_code == 503
    backends = answer.json()["backends"]
    assert (backends["default"]["ok"], backends["served"]["ok"]) == (True, False)
    assert "not ready: 'served'" in caplog.text
    assert [record.backend for record in caplog.records if "not ready" in record.msg] == ["served"]


def test_it_is_not_ready_where_no_lock_works_in_its_process(client, settings, monkeypatch, caplog):
    settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
    monkeypatch.setattr("distlock.conf.host_problem", lambda: "its threads were replaced")
    monkeypatch.setattr(locks._state(), "in_good_host", False)
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()["ok"]) == (503, False)
    assert "not ready: 'default': its threads were replaced" in caplog.text


def test_one_that_is_silent_is_waited_for_as_long_as_a_page_waits(
    client, proxied, with_a_database, monkeypatch
):
    monkeypatch.setattr("distlock.fan_out.TIMEOUT", 0.3)
    proxied("postgresql").silence()
    answer = client.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["backends"]["served"]["ok"] is False


def test_it_does_not_say_in_public_what_is_wrong(client, proxied, with_a_database):
    proxied("postgresql").refuse()
    assert "127.0.0.1" not in client.get("/ready").content.decode()


def test_one_may_ask_for_some_only(client, proxied, with_a_database):
    proxied("postgresql").refuse()
    assert client.get("/ready/default").status_code == 200


def test_a_wrong_setting_is_not_ready(client, settings):
    settings.DISTLOCK = {"default": {"BACKEND": "nowhere.Backend"}}
    assert client.get("/ready").status_code == 503


def test_a_request_that_is_a_transaction_is_none_here(client, settings, monkeypatch):
    """A database that is down would make it an error before it is asked."""
    settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert client.get("/ready").status_code == 200  # pytest-django refuses any query here


@pytest.mark.parametrize("path", ["/ready", "/leads/scheduler"])
def test_it_only_looks(client, path):
    assert client.post(path).status_code == 405


def test_the_leader_says_so_and_nobody_else(client, child, backend_settings, settings):
    settings.DISTLOCK = backend_settings("sqlite")
    election = Election("views:leads")
    election.campaign()
    answer = client.get("/leads/views:leads")
    assert (answer.status_code, answer.json()["ok"]) == (200, True)
    assert client.get("/leads/views:other").status_code == 503
    another = child(answer_leads, "views:leads")
    assert another.line() == "503"
    election.resign()
    assert client.get("/leads/views:leads").status_code == 503
    another.finish()


def test_who_does_not_lead_is_no_error_in_the_log(client, caplog, settings):
    """It is what all but one process answer to each probe."""
    settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
    client.get("/leads/views:nobody")
    assert not [record for record in caplog.records if record.name.startswith("django")]


def answer_leads(name):
    with override_settings(ROOT_URLCONF="tests.views.urls", ALLOWED_HOSTS=["*"]):
        print(Client().get(f"/leads/{name}").status_code, flush=True)


def test_one_who_was_asked_to_step_down_says_that_it_leads_no_more(
    client, backend_settings, settings
):
    settings.DISTLOCK = backend_settings("sqlite")
    election = Election("views:recalled")
    election.campaign()
    assert election.step_down(election.term)
    eventually(lambda: client.get("/leads/views:recalled").status_code == 503)
    election.resign()
