"""Who did what to a lock, and why: written down wherever it was done, and shown with the lock."""

from __future__ import annotations

import asyncio
import getpass
import logging
import re
import socket
import uuid
from datetime import timedelta

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import router, transaction
from django.utils import timezone

from distlock import Lock, LockLost, audit, locks
from distlock.concurrency.workers import ThreadCall
from distlock.exceptions import BodyEnded
from distlock.models import AuditEntry
from distlock.recipes.log import Config
from distlock.recipes.queue import Queue
from distlock.tasks import sweep
from tests.contract.watch import eventually

USER = f"{getpass.getuser()}@{socket.gethostname()}"


@pytest.fixture(autouse=True)
def _migrated(backend_settings):
    backend_settings("sqlite")


@pytest.fixture
def written():
    """``written()``: what the log says, newest first."""

    def read(using="default"):
        found = AuditEntry.objects.using(using).order_by("-pk")
        return [(entry.name, entry.action, entry.who, entry.text) for entry in found]

    return read


class TestABreak:
    def test_by_command_says_who_did_it_and_why(self, local, run, run_json, taken):
        (lock,) = taken("stock")
        token, owner = lock.token, lock.info().owner
        options = ("--yes", "--as", "ada", "--reason", "stuck \x1b[31m")
        assert run("release", "stock", f"--token={token}", *options).code == 0
        text = f"Force released: token {token}, owner {owner}. Reason: stuck \\x1b[31m"
        assert re.search(rf"\+05:45 +ada: {re.escape(text)}\n", run("show", "stock").out)
        (entry,) = run_json("show", "stock")["locks"][0]["audit"]
        assert entry == {"at": entry["at"], "who": "ada", "action": "release", "text": text}

    @pytest.mark.every_day_on("zookeeper")
    @pytest.mark.parametrize("kind", ["zookeeper", "etcd"])
    def test_is_written_to_the_database_wherever_the_lock_is(self, shared, taken, written):
        (lock,) = taken("stock", lease=None)
        assert Lock("stock").force_release(lock.token, reason="stuck")
        ((name, action, who, text),) = written()
        assert (name, action, who) == ("stock", "release", USER)
        assert text.endswith("Reason: stuck")

    def test_by_a_coroutine_is_written_without_waiting_for_it(self, local, taken, written):
        (lock,) = taken("stock")
        asyncio.run(Lock("stock").aforce_release(lock.token, who="ada"))
        eventually(lambda: [who for _, _, who, _ in written()] == ["ada"])

    def test_that_did_not_happen_is_not_written(self, local, taken, written):
        (lock,) = taken("stock")
        assert not Lock("stock").force_release(lock.token + 1)
        assert written() == []


def test_times_are_shown_in_a_project_without_time_zones(local, run, taken, settings):
    settings.USE_TZ = False
    (lock,) = taken("stock")
    lock.force_release(lock.token, who="ada")
    year = timezone.now().year
    assert re.search(rf"\n  {year}-.*\+05:45  ada: Force released", run("show", "stock").out)


class Elsewhere:
    """Keeps the log in PostgreSQL."""

    def db_for_write(self, model, **hints):
        return "postgresql" if model is AuditEntry else None

    db_for_read = db_for_write


@pytest.fixture
def elsewhere(server, backend_settings, settings):
    settings.DATABASE_ROUTERS = [Elsewhere()]
    backend_settings("postgresql")  # starts and migrates it
    AuditEntry.objects.using("postgresql").delete()
    settings.DISTLOCK = backend_settings("local")
    yield server("postgresql")
    locks.close_all()


def test_a_rollback_of_the_caller_does_not_undo_what_is_written(elsewhere, taken, written):
    (lock,) = taken("stock")
    with pytest.raises(ZeroDivisionError), transaction.atomic("postgresql"):
        Lock("stock").force_release(lock.token)
        raise ZeroDivisionError
    assert [action for _, action, _, _ in written("postgresql")] == ["release"]


@pytest.fixture
def config(backend_settings, settings):
    """A new one on SQLite, where other tests may have left theirs."""
    settings.DISTLOCK = backend_settings("sqlite")
    yield Config(f"limit-{uuid.uuid4().hex[:12]}")
    locks.close_all()


class TestATransactionOnSQLite:
    """It has the log in it; an entry is there exactly if what it tells of was done."""

    def test_that_is_rolled_back_leaves_what_was_done_beside_it(self, config, written):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            config.set(1, who="ada")
            raise ZeroDivisionError
        assert config.get().version == 1
        assert eventually(written) == [(config.name, "set", "ada", "Set: version 1.")]

    def test_that_is_committed_leaves_it_once(self, config, written):
        with transaction.atomic():
            config.set(1, who="ada")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                config.set(2, who="bob")
                raise ZeroDivisionError
            assert written() == []
        assert [*AuditEntry.objects.order_by("at").values_list("who", flat=True)] == ["ada", "bob"]

    def test_says_when_it_was_done(self, config, written):
        with transaction.atomic():
            config.set(1)
            done = timezone.now()
            eventually(lambda: timezone.now() > done + timedelta(seconds=0.01))
        assert AuditEntry.objects.get().at <= done

    def test_that_is_rolled_back_takes_a_break_back_with_its_entry(self, config, taken, written):
        (lock,) = taken("stock")
        held = lock.info()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            assert Lock("stock").force_release(lock.token)
            raise ZeroDivisionError
        assert (lock.info().state, lock.info().token) == (held.state, held.token)
        config.set(1)  # whatever is written later is written now
        assert [action for _, action, _, _ in written()] == ["set"]

    def test_takes_no_break_back_of_a_lock_elsewhere(self, local, taken, written):
        (lock,) = taken("stock")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            assert Lock("stock").force_release(lock.token)
            raise ZeroDivisionError
        assert [action for _, action, _, _ in eventually(written)] == ["release"]


def test_what_is_done_is_done_while_the_database_of_the_log_is_silent(
    elsewhere, taken, run, caplog
):
    (lock,) = taken("stock")
    elsewhere.pause()
    assert Lock("stock").force_release(lock.token, reason="stuck", who="ada")
    assert (
        "has not answered in time; to be written: lock 'stock' on 'default', release" in caplog.text
    )
    assert "by ada: Force released:" in caplog.text and "Reason: stuck" in caplog.text
    assert not lock.info().owner
    assert run("show", "stock").code == 3
    elsewhere.resume()
    eventually(lambda: AuditEntry.objects.using("postgresql").count() == 1)


def test_what_is_written_late_says_when_it_was_done(elsewhere):
    async def set_some():
        for value in range(4):  # more than are written at once
            await Config("mail").aset(value)

    elsewhere.pause()
    asyncio.run(set_some())
    done, found = timezone.now(), AuditEntry.objects.using("postgresql")
    elsewhere.resume()
    eventually(lambda: found.count() == 4)
    assert max(entry.at for entry in found.all()) < done
    assert [entry.text for entry in found.order_by("at")] == [
        f"Set: version {version}." for version in range(1, 5)
    ]


def test_the_site_s_log_says_that_the_database_is_down(elsewhere, taken, caplog):
    (lock,) = taken("stock")
    elsewhere.stop()
    with caplog.at_level(logging.WARNING, "distlock"):
        assert Lock("stock").force_release(lock.token)
        eventually(lambda: "the audit log, in the database 'postgresql', failed" in caplog.text)
    assert "to be written: lock 'stock' on 'default', release by" in caplog.text


class TestWhatInterruptsTheCaller:
    """The loss of a lock around it, or a time limit, is no error of the log."""

    @pytest.fixture(autouse=True)
    def settled(self):
        """What nobody waited for is written before the next test."""
        yield
        audit._settle()

    @pytest.fixture
    def meet(self, monkeypatch):
        def strike(error, *where):
            def meet(*args, **kwargs):
                raise error

            monkeypatch.setattr(*where, meet)

        return strike

    @pytest.mark.parametrize("error", [BodyEnded, SoftTimeLimitExceeded])
    def test_while_it_waits(self, local, taken, meet, error):
        (lock,) = taken("stock")
        meet(error, ThreadCall, "wait")
        with pytest.raises(error):
            Lock("stock").force_release(lock.token)

    def test_while_it_writes_in_its_own_transaction(self, config, taken, meet):
        (lock,) = taken("stock")
        meet(BodyEnded, AuditEntry.objects, "create")
        with pytest.raises(BodyEnded), transaction.atomic():
            Lock("stock").force_release(lock.token)

    def test_while_it_looks_for_the_database(self, local, taken, meet):
        (lock,) = taken("stock")
        meet(BodyEnded, router, "db_for_write")
        with pytest.raises(BodyEnded):
            Lock("stock").force_release(lock.token)

    @pytest.mark.parametrize("error", [BodyEnded, SoftTimeLimitExceeded])
    def test_while_a_task_sweeps(self, local, meet, error):
        meet(error, locks["default"], "sweep")
        with pytest.raises(error):
            sweep(["default", "nowhere"])


class TestASweep:
    @pytest.mark.parametrize("kind", ["sqlite"])
    def test_that_freed_a_hold_is_written(self, shared, run, abandoned, written):
        abandoned("stock")
        assert run("sweep").code == 0
        assert run("sweep").code == 0  # nothing more
        assert written() == [("", "sweep", USER, "Swept: 1 expired, 0 removed.")]

    def test_removes_old_entries(self, local, run, settings, written):
        for name, days in ("old", 91), ("new", 89):
            AuditEntry.objects.create(at=timezone.now() - timedelta(days), name=name)
        run("sweep")
        assert [name for name, *_ in written()] == ["new"]
        settings.DISTLOCK_AUDIT_DAYS = 30
        run("sweep")
        assert written() == []

    def test_removes_nothing_if_the_setting_is_wrong(self, local, run, settings, written, caplog):
        AuditEntry.objects.create(at=timezone.now() - timedelta(91), name="old")
        settings.DISTLOCK_AUDIT_DAYS = -1
        assert run("sweep").code == 0
        assert [name for name, *_ in written()] == ["old"]
        assert "DISTLOCK_AUDIT_DAYS must be a number of days" in caplog.text


class TestCommandsOfRecipes:
    def test_write_what_they_did(self, local, run, written):
        Queue("mail").put(1)
        first = Config("limit").set(1)
        run("queue", "purge", "mail", "--yes", "--as", "ada", "--reason", "spam")
        run("queue", "purge", "mail", "--yes")  # nothing is left: nothing was done
        run("config", "set", "limit", "2", "--as", "bob", "--reason", "less load")
        run("config", "rollback", "limit", str(first))
        assert written() == [
            ("limit", "rollback", USER, f"Rolled back to version {first}: version {first + 2}."),
            ("limit", "set", "bob", f"Set: version {first + 1}. Reason: less load"),
            ("mail", "purge", "ada", "Removed: 1 items that are ready. Reason: spam"),
            ("limit", "set", USER, f"Set: version {first}."),
        ]
        assert [value.who for value in Config("limit").history()][1] == "bob"

    def test_work_for_a_user_without_a_name(self, local, run, written, monkeypatch):
        for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as in a container with --user 12345
        assert run("config", "set", "limit", "1").code == 0
        assert written()[0][2] == Config("limit").get().who == f"?@{socket.gethostname()}"

    def test_write_what_they_did_before_they_failed(self, local, run, written):
        queue = Queue("mail", max_deliveries=1)
        queue.put_many([1, 2])
        for delivery in queue.get_many(2):
            delivery.nack()
        queue.resize(1)
        assert run("queue", "retry", "mail", "--all").code == 75  # no room for the second one
        assert written()[0] == ("mail", "retry", USER, "Put back: 1 of 2 dead letters.")


class TestAFreedRow:
    """Of a database: elsewhere nothing is left of a hold."""

    def test_says_who_had_it_and_that_it_was_released(self, shared, run, run_json, taken):
        (lock,) = taken("stock", description="count")
        owner = lock.info().owner
        lock.release()
        last = Lock("stock").info().last
        assert (last.ended, last.owner.pid) == ("released", owner.pid)
        assert (last.description, last.call_site[:6]) == ("count", "tests/")
        shown = run("show", "stock").out
        assert re.search(
            rf"last owner +{owner}\n +description +count\n +acquired at +\S+:\d+\n +released at",
            shown,
        )
        assert run_json("show", "stock")["locks"][0]["last"]["ended"] == "released"

    def test_says_that_it_was_broken(self, shared, taken):
        (lock,) = taken("stock")
        lock.force_release(lock.token)
        assert Lock("stock").info().last.ended == "broken"

    def test_says_that_it_expired(self, shared, run, abandoned):
        abandoned("stock")
        run("sweep")
        assert Lock("stock").info().last.ended == "expired"

    def test_is_taken_as_any_other(self, shared, taken):
        (lock,) = taken("stock")
        lock.force_release(lock.token)
        with pytest.raises(LockLost):
            lock.release()
        (again,) = taken("stock")
        assert again.info().last is None
        again.release()
        assert Lock("stock").info().last.ended == "released"
