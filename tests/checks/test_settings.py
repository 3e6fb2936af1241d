"""What is wrong with the ``DISTLOCK`` setting, without asking a server."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from io import StringIO

import pytest
from django.core.checks import Tags, registry, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connections

from distlock import Lock
from distlock.backends.database import DatabaseBackend
from distlock.backends.database.checks import deployment_checks, settings_checks
from distlock.checks import check_settings
from distlock.conf import locks

LOCAL = "distlock.backends.local.LocalBackend"
DATABASE = "distlock.backends.database.DatabaseBackend"


def messages():
    return [
        message for message in run_checks(tags=["distlock"]) if message.id.startswith("distlock.")
    ]


def ids():
    return [message.id for message in messages()]


@pytest.fixture(autouse=True)
def debug(settings):
    """As on a developer's machine; production has warnings of its own."""
    settings.DEBUG = True


def test_an_old_sqlite_is_refused(settings, monkeypatch):
    """Before 3.35 it could not return what it had written."""
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 34, 1))
    settings.DISTLOCK = {"default": {"BACKEND": DATABASE}}
    (message,) = messages()
    assert message.id == "distlock.E001"
    assert "SQLite must be 3.35 or later" in message.msg


class TestTheEntry:
    def test_that_is_right_is_not_mentioned(self, settings):
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
        assert messages() == []

    @pytest.mark.parametrize(
        ("entry", "problem"),
        [
            ({"BACKEND": LOCAL, "LAESE": 3}, "unknown setting 'LAESE'"),
            ({"BACKEND": LOCAL, "OPTIONS": {"x": 1}}, "OPTIONS: unknown setting 'x'"),
            ({"BACKEND": LOCAL, "LEASE": 0}, "LEASE must be finite and greater than 0"),
            ({"BACKEND": LOCAL, "LEASE": 9, "RENEW": 4}, "RENEW is 4, but with LEASE 9"),
            ({"BACKEND": LOCAL, "RELEASE": None}, "RELEASE must be 'now' or 'commit', not None"),
            ({"BACKEND": "distlock.nowhere.Backend"}, "cannot import BACKEND"),
            ({"BACKEND": "distlock.locking.lock.Lock"}, "is not a lock backend"),
            ({"BACKEND": DATABASE, "OPTIONS": {"database": "x"}}, "OPTIONS['database'] is 'x'"),
            (
                {"BACKEND": DATABASE, "OPTIONS": {"database": "oracle"}},
                "locks are kept in MariaDB, MySQL, PostgreSQL or SQLite, not in 'unknown'",
            ),
            ({}, "must be a dictionary with a 'BACKEND'"),
            ([], "must be a dictionary with a 'BACKEND'"),
        ],
    )
    def test_that_is_wrong_is_an_error_that_names_it(self, settings, entry, problem, monkeypatch):
        another = {"ENGINE": "django.db.backends.dummy"}  # has no vendor's name of its own
        monkeypatch.setitem(connections.settings, "oracle", another)
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL}, "odd": entry}
        (message,) = messages()
        assert message.id == "distlock.E001"
        assert message.obj == "DISTLOCK['odd']"
        assert problem in message.msg
        assert message.hint
        assert str(message).count("DISTLOCK['odd']") == 1

    def test_that_is_no_dictionary_at_all(self, settings):
        settings.DISTLOCK = "local"
        (message,) = messages()
        assert (message.id, message.obj) == ("distlock.E001", "DISTLOCK")

    def test_that_is_not_called_default_is_an_error(self, settings):
        settings.DISTLOCK = {"Default": {"BACKEND": LOCAL}}
        (message,) = messages()
        assert (message.id, message.obj) == ("distlock.E001", "DISTLOCK['default']")
        assert "the aliases are: 'Default'" in message.msg
        assert str(message).count("DISTLOCK['default']") == 1

    def test_none_means_that_there_is_no_default(self, settings):
        settings.DISTLOCK = {"orders": {"BACKEND": LOCAL}, "default": None}
        assert messages() == []

    @pytest.mark.parametrize("wrong", [{"BACKEND": LOCAL}, {"LEASE": 60}])
    def test_that_has_no_alias_is_one_error(self, settings, wrong):
        settings.DISTLOCK = wrong
        (message,) = messages()
        assert (message.id, message.obj) == ("distlock.E001", "DISTLOCK")
        assert "must have an entry for each alias" in message.msg

    def test_does_not_hide_what_is_wrong_with_the_next(self, settings):
        settings.DISTLOCK = {
            "default": {"BACKEND": LOCAL},
            "a": {"BACKEND": LOCAL, "LEASE": -1},
            "b": {"BACKEND": LOCAL, "LEASE": "long"},
        }
        assert [message.obj for message in messages()] == ["DISTLOCK['a']", "DISTLOCK['b']"]

    def test_can_be_silenced(self, settings):
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL, "LEASE": -1}}
        with pytest.raises(CommandError, match="distlock.E001"):
            call_command("check", tags=["distlock"], stderr=StringIO())
        settings.SILENCED_SYSTEM_CHECKS = ["distlock.E001"]
        call_command("check", tags=["distlock"], stdout=StringIO(), stderr=StringIO())


def test_the_default_entry_needs_no_backend(settings):
    """It is the default database's, as without any entry."""
    settings.DISTLOCK = {"default": {"LEASE": 60}}
    assert isinstance(locks["default"], DatabaseBackend)
    assert locks["default"].settings.lease == 60
    assert "distlock.E001" not in ids()


class TestAMissingApp:
    """Without it in INSTALLED_APPS there are no checks, so each error has to say what to do."""

    @pytest.mark.parametrize(
        "statement",
        [
            "from distlock import Lock; Lock('x').acquire()",
            "from distlock import Lock; Lock('x').info()",
            "from distlock.recipes import Queue; Queue('x').put(1)",
            "import distlock.models",
        ],
    )
    def test_is_named_with_what_to_add(self, statement):
        program = (
            "import django; from django.conf import settings; settings.configure(DATABASES="
            "{'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}});"
            f" django.setup(); {statement}"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "distlock is not in INSTALLED_APPS. Add 'distlock' there" in run.stderr


class TestAMissingDriver:
    @pytest.fixture
    def without(self, driver, monkeypatch, tmp_path):
        """A backend whose module imports a driver that is not there."""
        (tmp_path / "needs_driver.py").write_text(f"import {driver}.client\n")
        monkeypatch.syspath_prepend(tmp_path)
        for name in [name for name in sys.modules if name.partition(".")[0] == driver]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, driver, None)
        yield
        sys.modules.pop("needs_driver", None)

    @pytest.mark.parametrize(("driver", "extra"), [("kazoo", "zookeeper")])
    def test_comes_with_the_line_that_installs_it(self, settings, without, extra):
        settings.DISTLOCK = {"default": {"BACKEND": "needs_driver.Backend"}}
        (message,) = messages()
        assert message.id == "distlock.E002"
        assert f"django-distlock[{extra}]" in message.hint

    @pytest.mark.parametrize(("driver", "extra"), [("kazoo", "zookeeper")])
    def test_comes_with_it_where_a_lock_is_taken_too(self, settings, without, extra):
        settings.DISTLOCK = {"default": {"BACKEND": "needs_driver.Backend"}}
        with pytest.raises(ImproperlyConfigured, match=rf"pip install .django-distlock\[{extra}\]"):
            Lock("stock").acquire()

    def test_of_a_database_comes_with_it_there_too(self, settings, database_entry):
        database_entry("x", {"ENGINE": "tests.checks.no_driver"})
        settings.DISTLOCK = {"x": {"BACKEND": DATABASE, "OPTIONS": {"database": "x"}}}
        with pytest.raises(ImproperlyConfigured, match=r"django-distlock\[postgresql\]"):
            Lock("stock", using="x").acquire()

    def test_is_not_suspected_behind_a_wrong_path(self, settings):
        settings.DISTLOCK = {"default": {"BACKEND": "kazzoo.Backend"}}
        assert ids() == ["distlock.E001"]

    def test_of_a_database_comes_with_the_line_too(self, settings, database_entry):
        database_entry("x", {"ENGINE": "tests.checks.no_driver"})
        settings.DISTLOCK = {"default": {"BACKEND": DATABASE, "OPTIONS": {"database": "x"}}}
        (message,) = check_settings(None)
        assert message.id == "distlock.E002"
        assert "django-distlock[postgresql]" in message.hint


class TestInProduction:
    @pytest.fixture(autouse=True)
    def debug(self, settings, monkeypatch):
        settings.DEBUG = False
        monkeypatch.delattr("django.core.mail.outbox")

    def test_locks_of_one_process_are_warned_of(self, settings):
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
        (message,) = messages()
        assert (message.id, message.obj) == ("distlock.W001", "DISTLOCK['default']")

    def test_locks_of_one_host_are_warned_of(self, settings, backend_settings):
        settings.DISTLOCK = backend_settings("sqlite")
        assert ids() == ["distlock.W002"]


class TestInTests:
    """Django's test runner sets DEBUG to False and runs the checks."""

    @pytest.mark.parametrize("kind", ["local", "sqlite"])
    def test_locks_of_one_process_or_host_are_right(self, settings, backend_settings, kind):
        settings.DEBUG = False
        settings.DISTLOCK = backend_settings(kind)
        assert messages() == []


@pytest.fixture
def database_entry(monkeypatch):
    """``database_entry(alias, entry)``: a database alias that only this test has."""
    aliases = []

    def add(alias, entry):
        monkeypatch.setitem(connections.settings, alias, entry)
        connections.configure_settings({**connections.settings, alias: entry})
        aliases.append(alias)

    yield add
    for alias in aliases:
        with suppress(AttributeError):  # nobody may have asked for it
            del connections[alias]


class TestTheDatabase:
    def test_in_sqlite_is_not_mentioned_in_development(self, settings, backend_settings):
        settings.DISTLOCK = backend_settings("sqlite")
        assert messages() == []

    @pytest.mark.parametrize("name", [":memory:", ""])
    def test_in_memory_is_refused_outside_of_tests(self, database_entry, monkeypatch, name):
        monkeypatch.delattr("django.core.mail.outbox")
        database_entry("x", {"ENGINE": "django.db.backends.sqlite3", "NAME": name})
        assert [message.id for message in settings_checks("a", "x")] == ["distlock.E003"]

    @pytest.mark.parametrize(
        ("journal", "ids"), [("delete", ["distlock.W011"]), ("wal", []), (None, [])]
    )
    def test_in_a_file_with_a_rollback_journal_is_slow_in_production(
        self, settings, database_entry, monkeypatch, tmp_path, journal, ids
    ):
        """A missing file causes no message, and is not created."""
        monkeypatch.delattr("django.core.mail.outbox")
        settings.DISTLOCK = {"default": {"BACKEND": DATABASE, "OPTIONS": {"database": "x"}}}
        file = tmp_path / "x.sqlite3"
        if journal:
            with closing(sqlite3.connect(file)) as connection:
                connection.execute(f"PRAGMA journal_mode = {journal}")
                connection.execute("CREATE TABLE something (id integer)")
        database_entry("x", {"ENGINE": "django.db.backends.sqlite3", "NAME": file})
        assert [message.id for message in deployment_checks("default", "x")] == ids
        assert file.exists() is bool(journal)
        found = run_checks(tags=["distlock"], include_deployment_checks=True)
        assert [one.id for one in found if one.id.startswith("distlock.")] == ids
        assert messages() == []

    def test_in_memory_is_right_in_tests(self, settings, backend_settings):
        settings.DISTLOCK = backend_settings("memory")
        assert messages() == []


def test_they_have_a_tag_of_their_own():
    assert registry.registry.tag_exists("distlock")
    assert Tags.database in {
        tag for check in registry.registry.registered_checks for tag in check.tags
    }


@pytest.fixture(autouse=True)
def no_backends_left():
    yield
    locks.close_all()


class TestTheGroups:
    """Which processes join by themselves: ``DISTLOCK_GROUPS``."""

    def test_that_are_right_are_not_mentioned(self, settings):
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
        settings.DISTLOCK_GROUPS = {"celery": "workers", "web": "web", "using": "default"}
        assert messages() == []

    @pytest.mark.parametrize(
        ("groups", "problem"),
        [
            ("workers", "must be a dictionary, not 'workers'"),
            ({"cron": "x"}, "unknown key 'cron'"),
            ({"web": ""}, "DISTLOCK_GROUPS['web']: name must not be empty"),
            ({"celery": 5}, "DISTLOCK_GROUPS['celery']: name must be a str"),
            ({"web": "web", "using": "elsewhere"}, "DISTLOCK has no alias 'elsewhere'"),
            ({"web": "web", "using": ["default"]}, "DISTLOCK has no alias ['default']"),
        ],
    )
    def test_that_are_wrong_are_told_of(self, settings, groups, problem):
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
        settings.DISTLOCK_GROUPS = groups
        (message,) = messages()
        assert message.id == "distlock.E009"
        assert problem in message.msg


class TestDaysOfTheAuditLog:
    @pytest.mark.parametrize("days", ["90", -1, True, float("nan"), 10**6, [30]])
    def test_that_are_wrong_are_told_of(self, settings, days):
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
        settings.DISTLOCK_AUDIT_DAYS = days
        (message,) = messages()
        assert message.id == "distlock.E011"
        assert "DISTLOCK_AUDIT_DAYS" in message.msg
        assert repr(days) in message.msg

    @pytest.mark.parametrize("days", [None, 0, 0.5, 365])
    def test_that_are_right_are_not_told_of(self, settings, days):
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
        settings.DISTLOCK_AUDIT_DAYS = days
        assert messages() == []


class TestRequestsThatAreTransactions:
    @pytest.fixture
    def atomic_requests(self, settings):
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL}}
        connections.settings["default"]["ATOMIC_REQUESTS"] = True
        yield
        connections.settings["default"]["ATOMIC_REQUESTS"] = False

    def test_are_warned_of(self, atomic_requests):
        (message,) = messages()
        assert (message.id, message.obj) == ("distlock.W009", "DISTLOCK['default']")
        assert "'default'" in message.msg

    @pytest.mark.parametrize("release", ["now", "commit"])
    def test_are_not_if_somebody_has_decided(self, atomic_requests, settings, release):
        settings.DISTLOCK = {"default": {"BACKEND": LOCAL, "RELEASE": release}}
        assert messages() == []
