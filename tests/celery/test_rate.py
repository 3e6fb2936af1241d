"""At most so many runs of a task in any time, over all workers."""

import pytest
from celery import Celery
from celery.exceptions import Retry

from distlock import LockBusy, LockTimeout, LockUnavailable, NotSupported, locks
from distlock.backends.base import BaseBackend
from distlock.backends.local import LocalBackend
from distlock.backends.local_store import LocalStore
from distlock.celery import SKIPPED, LockedTask, locked_task
from distlock.celery.messages import HEADER
from distlock.concurrency.clock import clock
from distlock.recipes import RateLimiter
from distlock.types.lease import State
from tests.celery.stage import LIMIT

pytestmark = pytest.mark.once


class TestInPlace:
    """Tasks that are called as functions, or run in place of being queued."""

    @pytest.fixture(autouse=True)
    def local(self, backend_settings, settings):
        settings.DISTLOCK = backend_settings("local")
        yield
        locks.close_all()

    @pytest.fixture
    def app(self):
        app = Celery("rated", set_as_current=False, broker="memory://", backend="cache+memory://")
        app.conf.task_always_eager = True
        app.conf.task_store_eager_result = True
        yield app
        app.close()

    @pytest.fixture
    def task(self, app):
        """``task(**options)``: one that notes each of its runs in ``task.ran``."""

        def make(**options):
            given = {"name": "in.place", "shared": False, "base": LockedTask, **options}

            def body(x=0):
                made.ran.append(x)
                return "ran"

            made = app.task(**given)(body)
            made.ran = []
            return made

        return make

    def test_what_gets_no_permit_raises_and_does_not_run(self, task):
        limited = task(rate="2/h", on_busy="raise")
        assert [limited(1), limited.delay(2).get()] == ["ran", "ran"]
        with pytest.raises(LockBusy, match="limiter 'in.place' on 'default': no permit") as caught:
            limited(3)
        assert type(caught.value) is LockBusy, "it has not waited"
        assert limited.delay(4).state == "FAILURE"
        assert limited.ran == [1, 2]

    def test_or_is_skipped(self, task, app):
        limited = task(rate="1/h", on_busy="skip", busy_result="later")
        result, skipped = limited.delay(1), limited.delay(2)
        assert (result.get(), skipped.get()) == ("ran", "later")
        assert app.tasks["in.place"].AsyncResult(skipped.id).state == SKIPPED
        assert limited(3) == "later"
        assert limited.ran == [1]

    def test_or_waits(self, task):
        limited, began = task(rate="1/1s", on_busy="wait"), clock()
        assert [limited(1), limited(2)] == ["ran", "ran"]
        assert clock() - began >= 1.0
        briefly = task(name="in.other.place", rate="1/h", on_busy="wait", timeout=0.05)
        briefly(1)
        with pytest.raises(LockTimeout, match="the task waited for 0.05 s"):
            briefly(2)
        assert briefly.ran == [1]

    def test_its_lock_is_free_when_it_gets_no_permit(self, task):
        limited = task(lock="a:{x}", rate="1/h", on_busy="raise", queueing_lock="a:{x}")
        assert limited.delay(1).get() == "ran"
        assert limited.delay(2).state == "FAILURE"
        for name in ("a:2", "queueing:a:2"):
            assert locks["default"].inspect(name).state is State.FREE
        assert limited.ran == [1]

    def test_tasks_of_one_name_share_a_rate(self, task):
        one = task(name="one", rate="1/h", rate_name="api:{x}", on_busy="skip")
        other = task(name="other", rate="1/h", rate_name=lambda x: f"api:{x}", on_busy="skip")
        assert [one(1), other(1), other(2), one(2)] == ["ran", None, "ran", None]
        assert RateLimiter("api:1", 1, 3600).info().taken == 1

    @pytest.fixture
    def next_header(self, monkeypatch, app):
        """``next_header(task, header)``: run its message; return the header of the next one."""
        app.conf.task_always_eager = False
        sent = []

        def send_task(*args, headers, **options):
            sent.append(headers[HEADER])
            return "result"

        def run(task, header):
            headers = {HEADER: {"task_id": "x", **header}}
            request = {"id": "x", "called_directly": False, "args": [], "kwargs": {}}
            task.push_request(headers=headers, **request)
            try:
                with pytest.raises(Retry):
                    task()
            finally:
                task.pop_request()
            return sent.pop()

        monkeypatch.setattr(app, "send_task", send_task)
        return run

    @pytest.mark.parametrize("options", [{}, {"lock": "a"}], ids=["rate", "lock and rate"])
    def test_it_is_queued_again_as_often_as_the_busy_limit(self, task, next_header, options):
        limited = task(rate="1/h", busy_delay=0.01, busy_limit=2, **options)
        limited()
        header = {}
        for times in (1, 2):
            header = next_header(limited, header)
            assert header["busy"] == times
        with pytest.raises(LockTimeout, match="each of 3 times"):
            next_header(limited, header)
        assert len(limited.ran) == 1

    @pytest.mark.parametrize("options", [{}, {"lock": "a"}], ids=["rate", "lock and rate"])
    def test_the_busy_times_before_a_run_do_not_count_after_it(self, app, next_header, options):
        def body(self):
            raise self.retry(countdown=0)

        given = {"name": "in.place", "shared": False, "base": LockedTask, "bind": True, **options}
        retried = app.task(rate="1/h", **given)(body)
        header = next_header(retried, {"busy": 3, "unavailable": 2})
        assert (header["busy"], header["unavailable"]) == (0, 0)

    def test_without_a_backend_nothing_runs(self, task, monkeypatch):
        def away(*args, **kwargs):
            raise LockUnavailable("away")

        limited = task(rate="1/h", on_unavailable="raise")
        monkeypatch.setattr(LocalStore, "read", away)
        with pytest.raises(LockUnavailable, match="away"):
            limited(1)
        assert limited.ran == []


def test_a_backend_without_records_is_refused_by_name(settings):
    settings.DISTLOCK = {"default": {"BACKEND": f"{__name__}.LocksOnly"}}
    with pytest.raises(NotSupported, match="task shop.rated: rate='1/s': "):
        locked_task(name="shop.rated", rate="1/s")(lambda: None)


class LocksOnly(LocalBackend):
    """A backend that keeps no records."""

    store = BaseBackend.store


@pytest.mark.parametrize("using", ["mariadb"])
def test_workers_run_no_more_and_queue_the_others_again(tasks, prefork, key):
    began = clock()
    results = [tasks.rated.delay(key, number) for number in range(4)]
    found = [result.get(timeout=LIMIT) for result in results]
    assert clock() - began >= 2.0
    assert sorted(number for number, _ in found) == [0, 1, 2, 3]
    assert "is requeued" in prefork.log
    assert "no permit was left, of 2 in 2 s" in prefork.log
