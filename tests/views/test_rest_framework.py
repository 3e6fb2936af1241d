"""What clients of Django REST framework are answered, with the handler that the pages show."""

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from rest_framework.exceptions import NotFound
from rest_framework.views import APIView

from distlock import Lock, LockBusy, LockLost, LockTimeout, LockUnavailable
from distlock.testing import held_elsewhere
from tests.readme.pages import snippets
from tests.views.urls import BUSY

(SHOWN,) = (code for code in snippets("python") if "handler_of_the_framework" in code)
exec(SHOWN, shown := {})  # noqa: S102 - ours
handle = shown["handle"]


class Failing(APIView):
    """Raises the error that the test has put here."""

    error = None

    def get(self, request):
        raise self.error


class Written(APIView):
    def get(self, request):
        Group.objects.create(name="views:written")
        with Lock(BUSY, on_busy="raise"):
            return HttpResponse()


urlpatterns = [path("failing", Failing.as_view()), path("written", Written.as_view())]


@pytest.fixture
def get(local, settings, monkeypatch):
    """``get("/failing", error)``: the answer to a client, as if in production."""
    settings.ROOT_URLCONF = __name__
    settings.REST_FRAMEWORK = {
        "EXCEPTION_HANDLER": f"{__name__}.handle",
        "DEFAULT_AUTHENTICATION_CLASSES": [],
    }

    def get(where, error=None):
        monkeypatch.setattr(Failing, "error", error)
        return Client(raise_request_exception=False).get(where)

    return get


@pytest.mark.parametrize(
    ("error", "status"),
    [(LockBusy("x"), 409), (LockTimeout("x"), 409), (LockUnavailable("x"), 503)],
)
def test_an_error_of_a_lock_is_answered_in_json(get, error, status):
    answer = get("/failing", error)
    assert (answer.status_code, answer["Retry-After"]) == (status, "5")
    assert answer.json()["retry_after"] == 5


@pytest.mark.parametrize(
    ("error", "status"), [(NotFound(), 404), (LockLost("x"), 500), (ValueError("x"), 500)]
)
def test_other_errors_are_left_to_its_own_handler(get, error, status):
    assert get("/failing", error).status_code == status


@pytest.mark.django_db(transaction=True)
def test_what_a_request_has_written_is_rolled_back(get, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with held_elsewhere(BUSY):
        assert get("/written").status_code == 409
    assert not Group.objects.filter(name="views:written").exists()
