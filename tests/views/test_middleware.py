"""What clients are answered when a view lets an error of a lock through."""

import asyncio
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import AsyncClient, Client, RequestFactory

from distlock import LockLost, LockUnavailable, locks
from distlock.middleware import LockErrorMiddleware, error_response
from distlock.testing import held_elsewhere
from tests.views.urls import BUSY

JSON = {"Accept": "application/json"}


class Slow(LockErrorMiddleware):
    retry_after = 30


@pytest.fixture(autouse=True)
def site(local, settings):
    settings.ROOT_URLCONF = "tests.views.urls"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "distlock.middleware.LockErrorMiddleware"]


@pytest.fixture
def get():
    """``get("/busy")``: the answer to a client, as if in production."""
    return Client(raise_request_exception=False).get


@pytest.mark.parametrize("path", ["/busy", "/async-busy"])
def test_a_busy_lock_is_a_conflict_that_may_be_tried_again(get, path):
    with held_elsewhere(BUSY):
        answer = get(path)
    assert answer.status_code == 409
    assert answer["Retry-After"] == "5"
    assert answer["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("path", ["/unavailable", "/async-unavailable", "/rendered"])
def test_a_backend_that_cannot_be_asked_is_a_service_that_is_unavailable(get, path):
    answer = get(path)
    assert answer.status_code == 503
    assert answer["Retry-After"] == "5"


@pytest.mark.parametrize("path", ["/busy", "/async-busy"])
def test_asgi_gets_the_same(path):
    with held_elsewhere(BUSY):
        answer = asyncio.run(AsyncClient().get(path, headers=JSON))
    assert (answer.status_code, answer.json()["error"]) == (409, "busy")


def test_json_is_answered_where_it_is_preferred(get):
    answer = get("/unavailable", headers=JSON)
    assert answer.json() == {"error": "unavailable", "retry_after": 5}
    assert answer["Vary"] == "Accept"


@pytest.mark.parametrize("accept", ["*/*", "text/html, application/json;q=0.9", "image/png", ""])
def test_html_is_answered_otherwise(get, accept):
    assert get("/unavailable", headers={"Accept": accept})["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("headers", [{}, JSON])
def test_the_client_is_not_told_who_or_what_is_in_the_way(get, headers):
    answer = get("/unavailable", headers=headers)
    assert "10.0.0.7" not in answer.content.decode()


def test_the_log_is(get, caplog):
    get("/unavailable")
    assert "GET /unavailable is answered with 503: the server at 10.0.0.7 does" in caplog.text


def test_a_project_may_have_pages_of_its_own(get, settings, tmp_path):
    (tmp_path / "503.html").write_text("Back in {{ retry_after }} seconds")
    (engine,) = settings.TEMPLATES
    settings.TEMPLATES = [{**engine, "DIRS": [tmp_path]}]
    assert get("/unavailable").content == b"Back in 5 seconds"


def test_a_project_may_choose_the_pause(get, settings):
    settings.MIDDLEWARE = ["tests.views.test_middleware.Slow"]
    assert get("/unavailable")["Retry-After"] == "30"


def test_a_loss_stays_an_error_of_the_server(get):
    assert get("/lost").status_code == 500


def test_a_view_may_answer_one_error_itself():
    request = RequestFactory().get("/", headers=JSON)
    assert error_response(LockUnavailable("x"), request).status_code == 503
    assert error_response(LockLost("x"), request) is None


@pytest.mark.django_db(transaction=True)
def test_what_a_request_has_written_is_rolled_back(get, settings, backend_settings, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with held_elsewhere(BUSY):
        assert get("/written").status_code == 409
    assert not Group.objects.filter(name="views:written").exists()


def test_no_lock_is_asked_for_on_the_way(get, monkeypatch):
    monkeypatch.setattr(type(locks["default"]), "inspect", SimpleNamespace())
    assert get("/unavailable").status_code == 503
