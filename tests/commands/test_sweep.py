"""``manage.py locks sweep``"""

from __future__ import annotations

import signal
import threading
from contextlib import closing

import pytest
from django.db import connections

from distlock import Lock
from distlock.conf import locks
from distlock.models import DatabaseLock
from distlock.recipes import Semaphore
from distlock.types.lease import State
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.databases import ALIASES

#: Signals and pauses have nothing to do with the engine.
on_one_engine = pytest.mark.parametrize("kind", ["sqlite"])


class TestOnce:
    def test_reports_what_expired(self, shared, run, abandoned):
        abandoned("a", "b")
        result = run("sweep")
        assert (result.out, result.code) == ("default: 2 expired, 0 removed\n", 0)
        assert shared.inspect("a").state is State.FREE
        assert run("sweep").out == "default: 0 expired, 0 removed\n"

    def test_reports_what_it_removed(self, settings, backend_settings, run):
        settings.DISTLOCK = backend_settings("sqlite", OPTIONS={"keep": 3600})
        for name in ("old", "new"):
            with Lock(name):
                pass
        rows = DatabaseLock.objects.filter(lock="old")
        rows.update(expires_at="2020-01-01T00:00:00Z", token=1)
        assert run("sweep").out == "default: 0 expired, 1 removed\n"
        assert list(DatabaseLock.objects.values_list("lock", flat=True)) == ["new"]
        locks.close_all()

    @on_one_engine
    def test_forgets_the_semaphores_that_nobody_uses(self, shared, run):
        with Semaphore("mailer", 3), Semaphore("printer", 2):
            pass
        with Semaphore("mailer", 3):
            assert run("sweep").out == "default: 0 expired, 1 removed\n"
            assert list(shared.store.directories()) == ["semaphore:mailer"]

    def test_leaves_what_is_held_alone(self, shared, run, holder):
        process = holder("stock")
        assert run("sweep").out == "default: 0 expired, 0 removed\n"
        process.tell()
        process.finish()

    def test_sweeps_every_backend_or_the_named_ones(self, settings, backend_settings, run):
        settings.DISTLOCK = {**backend_settings("local"), **backend_settings("local", alias="b")}
        assert [line.split(":")[0] for line in run("sweep").out.splitlines()] == ["default", "b"]
        assert run("sweep", "--using=b").out == "b: 0 expired, 0 removed\n"

    def test_goes_on_when_one_cannot_be_asked(self, settings, backend_settings, run):
        settings.DISTLOCK = {"wrong": {"BACKEND": "nowhere.X"}, **backend_settings("local")}
        result = run("sweep")
        assert result.out == "default: 0 expired, 0 removed\n"
        assert (result.code, "'wrong' could not be asked" in result.err) == (1, True)

    def test_goes_on_when_one_has_no_answer_in_time(
        self, settings, backend_settings, run, abandoned
    ):
        hasty = {
            **backend_settings("sqlite", OPTIONS={"timeout": 0.5}),
            **backend_settings("local", alias="second"),
        }
        settings.DISTLOCK = backend_settings("sqlite")
        abandoned("stock")
        settings.DISTLOCK = hasty
        with closing(connections[ALIASES["sqlite"]].copy()) as other, other.cursor() as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            result = run("sweep")
        assert result.out == "second: 0 expired, 0 removed\n"
        assert (result.code, "'default' could not be asked" in result.err) == (1, True)
        locks.close_all()


class TestAgainAndAgain:
    @on_one_engine
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_ends_well_on_a_signal(self, shared, process, number):
        sweeping = process("sweep", "--every", "3600")
        assert sweeping.line().startswith("default: ")
        sweeping.signal(number)
        assert (sweeping.finish(), sweeping.errors) == ([], "")

    @on_one_engine
    def test_goes_on_where_ctrl_c_is_meant_for_others(self, shared, process, abandoned):
        """A shell has what it runs in the background ignore it."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            sweeping = process("sweep", "--every", "0.05")
        finally:
            signal.signal(signal.SIGINT, before)
        assert sweeping.line().startswith("default: ")
        sweeping.signal(signal.SIGINT)
        abandoned("stock")
        while "1 expired" not in sweeping.line():
            pass
        sweeping.signal(signal.SIGTERM)
        sweeping.finish()

    @on_one_engine
    def test_sweeps_until_then(self, shared, process, abandoned):
        sweeping = process("sweep", "--every", "0.05")
        assert sweeping.line().startswith("default: ")
        abandoned("stock")
        while "1 expired" not in sweeping.line():
            pass
        sweeping.signal(signal.SIGTERM)
        sweeping.finish()

    def test_goes_on_after_the_database_was_away(
        self, settings, backend_settings, process, abandoned, server
    ):
        settings.DISTLOCK = backend_settings("postgresql", OPTIONS={"timeout": 2})
        locks.close_all()
        connections[ALIASES["postgresql"]].close()
        sweeping = process("sweep", "--every", "0.1")
        assert sweeping.line().startswith("default: ")
        server("postgresql").stop()
        eventually(lambda: "could not be asked" in sweeping.errors)
        server("postgresql").start()
        settings.DISTLOCK = backend_settings("postgresql")  # an answer may take longer here
        abandoned("stock")
        while "1 expired" not in sweeping.line():
            pass
        sweeping.signal(signal.SIGTERM)
        sweeping.finish()

    @pytest.mark.usefixtures("local")
    def test_a_signal_that_python_misses_at_first_ends_it_soon(self, run):
        """One that comes in the moment in which a sleep begins, or on another thread, as here."""
        before, main = signal.getsignal(signal.SIGTERM), threading.main_thread().ident
        ended, soon = threading.Event(), []

        def end():
            eventually(lambda: signal.getsignal(signal.SIGTERM) is not before)
            passed(0.3)  # until the main thread sleeps
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            soon.append(ended.wait(PATIENCE))
            if not soon[0]:
                signal.pthread_kill(main, signal.SIGTERM)

        alarm = threading.Thread(target=end)
        alarm.start()
        run("sweep", "--every=3600")
        ended.set()
        alarm.join()
        assert soon == [True]

    @pytest.mark.parametrize("every", ["0", "-1", "nan", "inf", "x", "1e300"])
    def test_needs_a_pause(self, local, run, every):
        result = run("sweep", f"--every={every}")
        assert (result.code, "must be a number of seconds > 0" in result.err) == (1, True)

    def test_leaves_the_handlers_of_signals_as_they_were(self, local, run):
        before = signal.getsignal(signal.SIGTERM)
        main = threading.main_thread().ident

        def end():
            eventually(lambda: signal.getsignal(signal.SIGTERM) is not before)
            signal.pthread_kill(main, signal.SIGTERM)

        alarm = threading.Thread(target=end)
        alarm.start()
        run("sweep", "--every=0.01")
        alarm.join()
        assert signal.getsignal(signal.SIGTERM) is before
