"""Threads for blocking calls."""

import asyncio
import signal
import threading
from functools import partial

import pytest

from distlock.concurrency import threads
from distlock.concurrency.clock import clock
from distlock.concurrency.fork import PerProcess
from distlock.concurrency.workers import NotDone, WorkerThreads
from tests.contract.forks import forked
from tests.core.interrupting import interrupted

PATIENCE = 20.0
LIMITS = pytest.mark.parametrize("limit", [2, None])


def outcome(job):
    assert job.wait(clock() + PATIENCE)
    return job.take()


@LIMITS
def test_a_call_returns_or_raises_on_another_thread(limit):
    workers = WorkerThreads(limit, "test")
    assert outcome(workers.submit(threading.get_ident)) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        outcome(workers.submit(lambda: 1 / 0))
    assert outcome(workers.submit(lambda: "goes on")) == "goes on"


@LIMITS
def test_no_call_waits_for_another_while_there_are_threads_left(limit):
    for _ in range(20):
        workers, over = WorkerThreads(limit, "test"), threading.Event()
        outcome(workers.submit(lambda: "one thread is there"))
        long = workers.submit(lambda over=over: over.wait(PATIENCE))
        assert outcome(workers.submit(lambda: "short")) == "short"
        over.set()
        assert outcome(long)


@LIMITS
def test_calls_one_after_the_other_need_one_thread(limit, monkeypatch):
    monkeypatch.setattr("distlock.concurrency.workers._LINGER", PATIENCE)
    workers = WorkerThreads(limit, "test")
    assert len({outcome(workers.submit(threading.get_ident)) for _ in range(100)}) == 1


def test_there_are_no_more_threads_than_allowed():
    workers, over, used = WorkerThreads(3, "test"), threading.Event(), set()

    def call():
        used.add(threading.get_ident())
        return over.wait(PATIENCE)

    jobs = [workers.submit(call) for _ in range(20)]
    over.set()
    assert all(outcome(job) for job in jobs)
    assert len(used) <= 3


def test_without_a_limit_each_call_has_a_thread():
    workers, line = WorkerThreads(None, "test"), threading.Barrier(12)
    jobs = [workers.submit(lambda: line.wait(PATIENCE)) for _ in range(12)]
    assert sorted(outcome(job) for job in jobs) == list(range(12))


def test_calls_are_made_in_the_order_in_which_they_came():
    workers, over, made = WorkerThreads(1, "test"), threading.Event(), []
    workers.submit(lambda: over.wait(PATIENCE))
    jobs = [workers.submit(lambda number=number: made.append(number)) for number in range(10)]
    over.set()
    outcome(jobs[-1])
    assert made == list(range(10))


def busy(workers):
    """Let the only thread be busy until the event that is returned is set."""
    begun, over = threading.Event(), threading.Event()
    workers.submit(lambda: (begun.set(), over.wait(PATIENCE)))
    assert begun.wait(PATIENCE)
    return over


def test_a_call_that_is_abandoned_in_line_is_never_made():
    workers, made = WorkerThreads(1, "test"), []
    over = busy(workers)
    second = workers.submit(lambda: made.append(True), undo=lambda: made.append("undone"))
    assert second.abandon() is None
    assert not second.begun
    over.set()
    assert outcome(workers.submit(lambda: "third")) == "third"
    assert not made


@pytest.mark.parametrize("result", ["lease", None])
def test_a_call_that_is_abandoned_while_it_is_made_is_undone(result):
    workers, begun, over, undone = (
        WorkerThreads(1, "test"),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )

    def call():
        begun.set()
        assert over.wait(PATIENCE)
        return result

    job = workers.submit(call, undone.set)
    assert begun.wait(PATIENCE)
    job.discard()
    assert job.begun
    over.set()
    if result:
        assert undone.wait(PATIENCE)
    else:
        outcome(workers.submit(lambda: "the other one is over"))
        assert not undone.is_set()


def test_a_call_that_is_discarded_when_it_is_done_is_undone():
    workers, undone = WorkerThreads(1, "test"), threading.Event()
    job = workers.submit(lambda: "lease", undone.set)
    assert job.wait(clock() + PATIENCE)
    job.discard()
    assert undone.wait(PATIENCE)


def test_a_call_whose_outcome_was_taken_is_not_undone():
    workers, undone = WorkerThreads(1, "test"), []
    job = workers.submit(lambda: "lease", lambda: undone.append(True))
    assert outcome(job) == "lease"
    job.discard()
    assert not undone


def test_settling_waits_for_the_calls_that_have_begun_or_will():
    workers, done = WorkerThreads(1, "test"), []
    over = busy(workers)
    workers.submit(lambda: done.append(True))
    workers.drain(0.001)
    assert not done
    over.set()
    workers.drain(PATIENCE)
    assert done


def test_a_call_is_refused_if_there_is_no_thread(refuse):
    workers, made = WorkerThreads(2, "test"), []
    refuse("test")
    with pytest.raises(RuntimeError):
        workers.submit(lambda: made.append(True))
    workers.drain(PATIENCE)
    assert not made


@LIMITS
def test_a_call_waits_for_a_busy_thread_only_if_their_number_is_limited(limit, refuse):
    workers = WorkerThreads(limit, "test")
    over = busy(workers)
    refuse("test")
    if limit is None:
        with pytest.raises(RuntimeError):
            workers.submit(lambda: "second")
        over.set()
    else:
        second = workers.submit(lambda: "second")
        over.set()
        assert outcome(second) == "second"


def test_threads_end_and_begin_again(monkeypatch):
    monkeypatch.setattr("distlock.concurrency.workers._LINGER", 0.001)
    workers = WorkerThreads(1, "test")
    thread = outcome(workers.submit(threading.current_thread))
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert outcome(workers.submit(threading.current_thread)) is not thread


def test_an_interrupted_submit_leaves_nothing_behind(monkeypatch):
    """The call is not made, or undone; and the threads go on."""
    monkeypatch.setattr("distlock.concurrency.workers._LINGER", 0.001)
    workers, moment, interrupt = WorkerThreads(1, "test"), 1, True
    while interrupt:
        made, undone, jobs = [], threading.Event(), []

        def submit(made=made, undone=undone, jobs=jobs):
            jobs.append(workers.submit(lambda: made.append(True) or "lease", undone.set))

        interrupt = interrupted(submit, moment)
        workers.drain(PATIENCE)
        if interrupt and made:
            assert undone.wait(PATIENCE)
        assert outcome(workers.submit(lambda: "next")) == "next"
        moment += 1
    assert jobs[0].take() == "lease"


def test_the_child_of_a_fork_has_threads_of_its_own(way):
    workers = PerProcess(partial(WorkerThreads, 1, "test"))
    over = busy(workers())
    workers().submit(lambda: "waits in line")
    assert forked(lambda: outcome(workers().submit(lambda: "child")), way=way) == "child"
    over.set()


# For tasks


async def test_a_task_gets_what_the_call_returns_or_raises():
    workers = WorkerThreads(2, "test")
    assert await workers.run(lambda: "value") == "value"
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 / 0)


async def test_a_task_is_told_whether_a_late_call_has_begun():
    for limit in (0.05, 0.5, 5.0):  # a thread may take long to start on a busy machine
        workers, begun, over = WorkerThreads(1, "test"), threading.Event(), threading.Event()

        def call(begun=begun, over=over):
            begun.set()
            return over.wait(PATIENCE)

        with pytest.raises(NotDone) as late:
            await workers.run(call, clock() + limit)
        if begun.is_set():
            break
        over.set()
    assert begun.is_set()
    assert late.value.begun
    made = []
    with pytest.raises(NotDone) as late:
        await workers.run(lambda: made.append(True), clock() + 0.001)
    assert not late.value.begun
    over.set()
    workers.drain(PATIENCE)
    assert not made


@pytest.mark.parametrize("undoes", [False, True])
async def test_the_call_of_a_cancelled_task_is_made_unless_it_can_be_undone(undoes):
    workers, done = WorkerThreads(1, "test"), []
    over = busy(workers)
    undo = (lambda: None) if undoes else None
    task = asyncio.create_task(workers.run(lambda: done.append(True), undo=undo))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    over.set()
    workers.drain(PATIENCE)
    assert bool(done) is not undoes


@pytest.mark.parametrize("undoes", [False, True])
def test_a_call_in_line_is_made_though_its_event_loop_is_closed(undoes):
    workers, done, undone = WorkerThreads(1, "test"), [], threading.Event()
    over = busy(workers)
    loop = asyncio.new_event_loop()
    coroutine = workers.run(
        lambda: done.append(True) or "lease", undo=undone.set if undoes else None
    )
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False
    loop.close()
    over.set()
    workers.drain(PATIENCE)
    assert done
    assert not undoes or undone.wait(PATIENCE)
    coroutine.close()


async def test_what_a_cancelled_task_has_taken_is_undone():
    workers, over = WorkerThreads(1, "test"), threading.Event()
    begun, undone = threading.Event(), threading.Event()
    task = asyncio.create_task(
        workers.run(lambda: (begun.set(), over.wait(PATIENCE)), undo=undone.set)
    )
    await asyncio.sleep(0)
    assert begun.wait(PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    over.set()
    assert undone.wait(PATIENCE)


def test_a_thread_takes_no_signals():
    masks = []

    def look():
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    threads.start(look, "test").join(PATIENCE)
    threads.start_for_callbacks(look, "test").join(PATIENCE)
    assert signal.SIGINT in masks[0]
    assert masks[1] == before == signal.pthread_sigmask(signal.SIG_BLOCK, ())
