"""The table of the database backend: to be read, in whichever database it is."""

import pytest
from django.contrib.messages import get_messages
from django.urls import reverse

from distlock.admin.chosen import Chosen
from distlock.handler import locks
from distlock.models import DatabaseLock
from tests.databases import moved

LIST = "admin:distlock_databaselock_changelist"
BACKEND = "distlock.backends.database.DatabaseBackend"


@pytest.fixture
def two(sqlite, mariadb, settings, taken):
    """Locks in two databases, and no database has those of the other."""
    settings.DISTLOCK = {
        "default": {"BACKEND": BACKEND, "OPTIONS": {"database": "mariadb", "idle": 60}},
        "small": {"BACKEND": BACKEND, "OPTIONS": {"database": "default"}},
        "local": {"BACKEND": "distlock.backends.local.LocalBackend"},
    }
    for database in ("default", "mariadb"):
        DatabaseLock.objects.using(database).all().delete()
    taken("in mariadb")
    taken("in sqlite", using="small")


def test_it_shows_the_database_that_has_the_locks(two, operator):
    """Not the one that is called default."""
    page = operator.get(reverse(LIST)).content.decode()
    assert "in mariadb" in page
    assert "in sqlite" not in page


def test_another_database_can_be_chosen_and_its_rows_opened(two, operator):
    page = operator.get(reverse(LIST), {"database": "default"})
    text = page.content.decode()
    assert "in sqlite" in text
    assert "in mariadb" not in text
    row = DatabaseLock.objects.using("default").get(lock="in sqlite")
    address = reverse("admin:distlock_databaselock_change", args=[row.pk])
    opened = operator.get(address, {"_changelist_filters": "database=default"})
    assert "in sqlite" in opened.content.decode()


def test_a_database_that_is_not_for_locks_cannot_be_chosen(two, operator):
    page = operator.get(reverse(LIST), {"database": "postgresql"}).content.decode()
    assert "in mariadb" in page


def test_the_history_of_a_row_is_that_of_its_lock(two, operator, url):
    chosen = str(Chosen.of(locks["default"].inspect("in mariadb")))
    operator.post(url("release"), {"hold": [chosen], "confirmed": "yes", "reason": "to see it"})
    row = DatabaseLock.objects.using("mariadb").get(lock="in mariadb")
    history = reverse("admin:distlock_databaselock_history", args=[row.pk])
    page = operator.get(history, follow=True)
    assert "to see it" in page.content.decode()


def test_a_database_that_cannot_be_asked_is_a_message(two, operator):
    with moved("mariadb", 1):
        response = operator.get(reverse(LIST))
    assert response.headers["Location"] == reverse("admin:index")
    (said,) = (str(message) for message in get_messages(response.wsgi_request))
    assert said.startswith("The database mariadb could not be asked:")


def test_without_any_database_backend_it_is_the_default_database(local, operator):
    assert operator.get(reverse(LIST)).status_code == 200
