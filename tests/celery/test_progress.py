"""Tasks that report how far they are."""

import os
import signal

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError, WorkerLostError
from django.core.checks import run_checks

from distlock import Cancelled, NotSupported, locks
from distlock.apps import CHECKS_TAG
from distlock.backends.local import LocalBackend
from distlock.celery import LockedTask, locked_task
from distlock.recipes import Progress, track
from tests.celery.stage import LIMIT, published
from tests.celery.tasks import OF
from tests.contract.watch import eventually

pytestmark = pytest.mark.once


@pytest.mark.parametrize("using", ["mariadb"])
def test_a_task_is_seen_and_is_asked_to_end(tasks, key, using):
    result = tasks.tracked.delay(key)
    published(f"{key}:started")
    # The task says its total some time after the first step.
    report = eventually(lambda: (found := result.progress()).done and found.total and found)
    assert (report.state, report.total) == ("running", 10**6)
    assert report.description == f"Celery task {tasks.tracked.name}[{result.id}]"
    assert Progress(report.name, using=using).cancel(report.token)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=LIMIT)
    assert (result.state, result.progress().state) == ("REVOKED", "cancelled")


@pytest.mark.slow
@pytest.mark.parametrize("using", ["mariadb"])
def test_a_task_whose_pool_process_is_killed_is_lost(tasks, key, using):
    result = tasks.tracked.delay(key)
    os.kill(published(f"{key}:started")["pid"], signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        result.get(timeout=LIMIT)
    eventually(lambda: result.progress().state == "lost")


@pytest.mark.slow
@pytest.mark.parametrize("using", ["mariadb"])
@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_every_kind_of_pool(request, pool, key, using):
    request.getfixturevalue(pool)
    result = OF[using].tracked.apply_async((key,), queue=pool)
    published(f"{key}:started")
    report = eventually(lambda: (found := result.progress()).done and found)
    assert Progress(report.name, using=using).cancel()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=LIMIT)
    assert result.progress().state == "cancelled"


class TestInPlace:
    @pytest.fixture
    def local(self, backend_settings, settings, monkeypatch):
        settings.DISTLOCK = backend_settings("local")
        monkeypatch.setattr("distlock.recipes.progress._INTERVAL", 0.02)
        yield
        locks.close_all()

    @pytest.fixture
    def make(self, local):
        app = Celery("in_place", set_as_current=False, broker="memory://")
        app.conf.update(
            task_always_eager=True, task_store_eager_result=True, result_backend="cache+memory://"
        )

        def make(body, **options):
            return app.task(name="in.place", base=LockedTask, bind=True, shared=False, **options)(
                body
            )

        yield make
        app.close()

    def test_it_is_named_by_its_arguments(self, make):
        def body(self, rows):
            return list(track(rows, self.progress)), Progress.get("rows:3").state

        task = make(body, lock="a", progress=lambda rows: f"rows:{len(rows)}")
        assert task([1, 2, 3]) == ([1, 2, 3], "running")
        assert Progress.get("rows:3").done == 3
        with pytest.raises(RuntimeError, match="in.place reports no progress here"):
            _ = task.progress

    def test_a_function_call_is_cancelled_by_its_own_error(self, make):
        def body(self):
            Progress("mine").cancel()
            while True:
                self.progress.advance()

        with pytest.raises(Cancelled):
            make(body, progress="mine")()
        assert Progress.get("mine").state == "cancelled"

    def test_a_result_has_none_unless_it_was_asked_for(self, make):
        def body(self):
            self.progress.advance()

        with pytest.raises(TypeError, match="progress=True"):
            make(body, progress="mine").AsyncResult("7").progress()

    @pytest.mark.parametrize("wrong", ["", 7, False, "rows:{count}"])
    def test_what_is_wrong_is_refused_by_name(self, local, wrong):
        with pytest.raises((TypeError, ValueError), match=r"task .*wrong.*progress"):

            @locked_task(name="wrong", progress=wrong)
            def wrong_task(rows):
                pass

    def test_a_backend_without_records_is_refused(self, local, monkeypatch):
        def store(self):
            raise NotSupported("keeps no records")

        monkeypatch.setattr(LocalBackend, "store", property(store))
        with pytest.raises(NotSupported, match="task apart: progress=True: keeps no records"):
            locked_task(name="apart", progress=True)(print)
        assert any("progress=True" in found.msg for found in run_checks(tags=[CHECKS_TAG]))
