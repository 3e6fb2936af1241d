"""Tasks that are called as functions, or run in place of being queued."""

import json
import threading
from functools import partial

import pytest
from asgiref.sync import sync_to_async
from celery import Celery, chain, group
from celery.exceptions import Retry
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import transaction
from kombu.exceptions import OperationalError

from distlock import Lock, LockBusy, LockLost, LockNotHeld, LockTimeout, LockUnavailable, locks
from distlock.backends.local import LocalBackend
from distlock.celery import SKIPPED, AlreadyQueued, LockedTask, messages
from distlock.exceptions import BodyEnded
from distlock.recipes import Semaphore
from distlock.types.lease import State
from tests.celery.in_place import await_free, task_of
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually


@pytest.fixture(autouse=True)
def local(backend_settings, settings):
    """Locks of this process."""
    settings.DISTLOCK = backend_settings("local")
    yield
    locks.close_all()


@pytest.fixture
def app():
    """An app that runs tasks in place."""
    app = Celery("in_place", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.task_always_eager = True
    app.conf.task_store_eager_result = True
    yield app
    app.close()


@pytest.fixture
def elsewhere():
    """``elsewhere(name)``: have another thread hold a lock until the test ends."""
    done = threading.Event()
    threads = []

    def hold(name):
        held = threading.Event()

        def run():
            with Lock(name):
                held.set()
                done.wait()

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        held.wait()

    yield hold
    done.set()
    for thread in threads:
        thread.join()


class Silent(LocalBackend):
    """One that cannot be asked."""

    def try_acquire(self, claim, deadline=None):
        raise LockUnavailable("silence")


class Late(LocalBackend):
    """One that cannot be told at once that a lock is left."""

    def release(self, lease, deadline=None):
        raise LockUnavailable("silence")


class Forgetful(LocalBackend):
    """One whose answer to a claim that it has granted is lost."""

    def try_acquire(self, claim, deadline=None):
        super().try_acquire(claim, deadline)
        raise LockUnavailable("silence")


def test_a_function_call_takes_the_lock(app):
    task = task_of(app, lambda self, x: (self.lock.name, self.lock.token), lock="a:{x}", bind=True)
    name, token = task(7)
    assert name == "a:7"
    assert locks["default"].inspect("a:7").token in (None, token)
    with pytest.raises(LockNotHeld, match="task in.place holds no lock here"):
        _ = task.lock


def test_a_queued_task_runs_in_place_with_its_own_request(app):
    task = task_of(app, lambda self, x: self.request.id, lock="a:{x}", bind=True)
    result = task.delay(7)
    assert result.get() == result.id
    assert locks["default"].inspect("a:7").state is State.FREE


def test_the_same_owner_enters_again(app):
    def body(self):
        with Lock("a", timeout=0):
            return self.lock.held

    assert task_of(app, body, lock="a", bind=True)() is True


def test_both_locks_are_left_by_a_task_that_fails(app):
    def body():
        raise ValueError("x")

    task = task_of(app, body, lock="a", queueing_lock="a", until="finished")
    assert task.delay().state == "FAILURE"
    for name in ("a", "queueing:a"):
        assert locks["default"].inspect(name).state is State.FREE


def test_a_busy_one_is_skipped(app, elsewhere):
    elsewhere("a")
    result = task_of(app, lambda: 1, lock="a", on_busy="skip", busy_result=0).delay()
    assert (result.get(), result.state) == (0, "SUCCESS")
    assert app.tasks["in.place"].AsyncResult(result.id).state == SKIPPED


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_busy": "raise"}, LockBusy),
        ({"on_busy": "raise", "timeout": 0.05}, LockTimeout),
        ({"on_busy": "wait", "timeout": 0.05}, LockTimeout),
    ],
    ids=str,
)
def test_a_busy_one_fails_and_says_who_has_it(app, elsewhere, options, error):
    elsewhere("a")
    with pytest.raises(error) as caught:
        task_of(app, lambda: 1, lock="a", **options)()
    assert type(caught.value) is error
    assert caught.value.holder.token == Lock("a").info().token


def test_a_busy_one_may_wait_before_it_is_skipped(app, elsewhere):
    elsewhere("a")
    task = task_of(app, lambda: 1, lock="a", on_busy="skip", timeout=0.05, busy_result="later")
    assert task() == "later"


@pytest.mark.parametrize("call", ["function", "delay"])
def test_a_busy_one_that_cannot_be_queued_again_waits_as_long(app, elsewhere, call):
    elsewhere("a")
    task = task_of(app, lambda: 1, lock="a", busy_delay=0.05, busy_limit=2)
    with pytest.raises(LockTimeout, match=r"lock 'a'.*for 0\.15 s"):
        task() if call == "function" else task.delay().get()


def test_retries_in_place_keep_the_queueing_lock(app, sent_events):
    seen = []

    def body(self):
        seen.append(locks["default"].inspect("queueing:a").state)
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return "done"

    task = task_of(app, body, queueing_lock="a", until="finished", bind=True)
    assert task.delay().get() == "done"
    assert seen == [State.HELD] * 3
    assert sent_events.words("queueing:a").count("released") == 1  # nobody could come between
    assert locks["default"].inspect("queueing:a").state is State.FREE


def test_a_retry_that_is_told_to_the_caller_leaves_the_queueing_lock(app):
    app.conf.task_eager_propagates = True

    def body(self):
        raise self.retry(countdown=0)

    task = task_of(app, body, queueing_lock="a", until="finished", bind=True)
    with pytest.raises(Retry):
        task.delay()
    assert locks["default"].inspect("queueing:a").state is State.FREE


def test_a_task_that_queues_itself_again_is_queued_already(app):
    found = []

    def body(self, again=True):
        if again:
            found.append((self.request.id, self.delay(again=False).id))

    task = task_of(app, body, queueing_lock="a", until="finished", bind=True)
    task.delay().get()
    assert found[0][0] == found[0][1]


def test_groups_and_chains_run(app):
    task = task_of(app, lambda x: x + 1, lock="a:{x}", queueing_lock="a:{x}")
    assert group(task.s(n) for n in range(3)).apply_async().get() == [1, 2, 3]
    assert chain(task.s(1), task.s(), task.s())().get() == 4


@pytest.mark.parametrize("options", [{}, {"slots": 1}, {"on_lost": "terminate"}])
@pytest.mark.parametrize("call", ["delay", "__call__"])
def test_a_task_in_a_transaction_keeps_its_lock_until_the_commit(app, options, call):
    task = task_of(app, lambda: None, lock="a", release="commit", **options)
    lock = Semaphore("a", 1) if "slots" in options else Lock("a")
    with transaction.atomic():
        getattr(task, call)()
        assert lock.locked()
        getattr(task, call)()
        assert lock.locked()
    assert not lock.locked()


@pytest.mark.parametrize("options", [{}, {"slots": 1}, {"on_lost": "terminate"}])
def test_so_it_does_where_its_thread_has_lost_and_never_left_the_lock(app, options):
    make = partial(Semaphore, "a", 1) if "slots" in options else partial(Lock, "a")
    lost, lock = make(lease=0.1, renew=False), make()
    waits = {"on_busy": "wait", "timeout": PATIENCE}
    task = task_of(app, lambda: None, lock="a", release="commit", **waits, **options)
    assert lost.acquire()
    eventually(lambda: not lock.locked())
    with transaction.atomic():
        task()
        task()
        assert lock.locked()
    assert not lock.locked()


def test_delay_on_commit_takes_the_lock_at_the_commit(app):
    seen = []
    task = task_of(app, lambda: seen.append(locks["default"].inspect("queueing:a").state),
                   queueing_lock="a", until="finished")  # fmt: skip
    with transaction.atomic():
        task.delay_on_commit()
        task.apply_async_on_commit()
        assert locks["default"].inspect("queueing:a").state is State.FREE
        assert not seen
    assert seen == [State.HELD, State.HELD]  # the first has ended before the second


def test_nothing_is_queued_if_the_transaction_is_rolled_back(app):
    seen = []
    task = task_of(app, lambda: seen.append(1), queueing_lock="a")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        task.delay_on_commit()
        raise ZeroDivisionError
    assert not seen
    assert locks["default"].inspect("queueing:a").state is State.FREE


def test_a_lock_that_someone_took_by_hand_is_named(app, elsewhere):
    elsewhere("queueing:a")
    task = task_of(app, lambda: 1, queueing_lock="a")
    with pytest.raises(AlreadyQueued, match="lock 'queueing:a'") as caught:
        task.delay()
    assert caught.value.task_id is None


@pytest.mark.parametrize("option", ["lock", "queueing_lock"])
def test_a_backend_that_is_not_configured_is_named(app, option):
    task = task_of(app, lambda: 1, using="nowhere", **{option: "a"})
    with pytest.raises(ImproperlyConfigured, match=r"task in\.place: using='nowhere' .*'default'"):
        task.delay().get()


async def test_an_event_loop_is_not_blocked(app):
    task = task_of(app, lambda: 1, queueing_lock="a")
    with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
        task.delay()
    assert (await sync_to_async(task.delay)()).get() == 1


@pytest.mark.parametrize("until", ["started", "finished"])
def test_a_backend_that_is_away_at_the_end_spoils_nothing(app, settings, until):
    settings.DISTLOCK = {"default": {"BACKEND": Late}}
    task = task_of(app, lambda: "done", lock="a", queueing_lock="a", until=until)
    assert task.delay().get() == "done"
    for name in ("a", "queueing:a"):
        await_free(name)


def test_nothing_is_left_of_a_queueing_lock_whose_grant_was_not_heard_of(app, settings):
    settings.DISTLOCK = {"default": {"BACKEND": Forgetful}}
    with pytest.raises(LockUnavailable):
        task_of(app, lambda: "done", queueing_lock="a").delay()
    await_free("queueing:a")


def test_a_broker_that_is_away_leaves_nothing_queued(app):
    app.conf.update(task_always_eager=False, broker_url="amqp://127.0.0.1:1")
    app.conf.broker_transport_options = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    task = task_of(app, lambda: 1, queueing_lock="a")
    with pytest.raises(OperationalError):
        task.apply_async(retry=False)
    assert locks["default"].inspect("queueing:a").state is State.FREE


def test_a_task_that_fails_before_its_body_is_not_queued_any_more(app):
    class Hasty(LockedTask):
        def before_start(self, task_id, args, kwargs):
            raise ZeroDivisionError

    result = task_of(app, lambda: 1, base=Hasty, queueing_lock="a").delay()
    assert result.state == "FAILURE"
    assert locks["default"].inspect("queueing:a").state is State.FREE


def test_a_header_that_was_passed_on_is_not_for_another_task(app):
    def body(self):
        other.apply_async(headers=self.request.headers)
        return locks["default"].inspect("queueing:a").state

    other = task_of(app, lambda: 1, name="other", queueing_lock="b")
    task = task_of(app, body, queueing_lock="a", until="finished", bind=True)
    assert task.delay().get() is State.HELD


def test_a_lost_lock_fails_the_task(app):
    def body(self):
        locks["default"].force_release("a", self.lock.token)
        with pytest.raises(LockLost):
            self.lock.check()

    result = task_of(app, body, lock="a", bind=True).delay()
    with pytest.raises(LockLost):
        result.get()


def test_a_backend_that_cannot_be_asked_runs_nothing(app, settings):
    settings.DISTLOCK = {"default": {"BACKEND": Silent}}
    seen = []
    task = task_of(app, lambda: seen.append(1), lock="a")
    with pytest.raises(LockUnavailable):
        task.delay().get()
    with pytest.raises(LockUnavailable):
        task_of(app, lambda: seen.append(1), name="other", queueing_lock="a").delay()
    assert not seen


class TestTheLossOfALockAround:
    """It ends the code that it finds, whatever that does for a task."""

    @pytest.fixture
    def meet(self, monkeypatch):
        """``meet(owner, name)``: the loss comes in that method from then on."""

        def strike(*args, **kwargs):
            raise BodyEnded("the lock around this was lost")

        return partial(monkeypatch.setattr, value=strike)

    @pytest.mark.parametrize(
        ("until", "step"), [("started", "release"), ("finished", "try_acquire")]
    )
    def test_while_the_queueing_lock_is_freed_or_renewed(self, app, meet, until, step):
        class Unlucky(LockedTask):
            def before_start(self, task_id, args, kwargs):
                # The task's own lock has been taken by the time that this lock is asked for.
                meet(LocalBackend, step)

        called = []
        task = task_of(app, lambda: called.append(1), base=Unlucky, queueing_lock="a", until=until)
        with pytest.raises(LockLost):
            task.delay().get()
        assert not called

    def test_while_the_queueing_lock_is_taken_again(self, app, meet):
        def body(self):
            meet(LocalBackend, "try_acquire")
            self.apply_async(task_id=self.request.id)
            called.append(1)

        called = []
        task = task_of(app, body, queueing_lock="a", until="finished", bind=True)
        with pytest.raises(LockLost):
            task.delay().get()
        assert not called

    def test_while_an_event_is_sent(self, app, meet):
        called = []
        task = task_of(app, lambda: called.append(1), lock="a")
        meet(task, "send_event")
        headers = {messages.HEADER: {"task_id": "x", "events": True}}
        with pytest.raises(LockLost):
            task.apply(task_id="x", headers=headers).get()
        assert not called

    def test_while_a_task_is_requeued(self, app, meet):
        task = task_of(app, lambda: None, lock="a", rate="1/h")
        task()
        meet(task, "apply_async")
        task.push_request(id="x", called_directly=False, args=[], kwargs={})
        with pytest.raises(BodyEnded):
            task()

    def test_while_a_result_tells_that_the_first_call_has_ended(self, app, meet):
        app.conf.task_always_eager = False
        task = task_of(app, lambda: None, queueing_lock="a")
        task.delay()
        meet(task.backend, "get_state")
        with pytest.raises(BodyEnded):
            task.delay()

    def test_while_the_result_of_that_is_decoded(self, app, meet):
        app.conf.task_always_eager = False
        task = task_of(app, lambda: None, queueing_lock="a")
        first = task.delay()
        task.backend.store_result(first.id, None, "STARTED")
        meet(json.JSONDecoder, "decode")  # kombu makes an error of its own of what comes there
        with pytest.raises(BodyEnded):
            task.delay()

    def test_while_a_result_revokes_its_task(self, app, meet):
        app.conf.task_always_eager = False
        first = task_of(app, lambda: None, queueing_lock="a").delay()
        meet(LocalBackend, "list")
        with pytest.raises(BodyEnded):
            first.revoke()
