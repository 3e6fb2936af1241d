"""One body runs for threads and for tasks, and cleans up however it is left."""

import _thread
import asyncio
import signal
import threading
from contextlib import suppress

import pytest

from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import Call, Either, Sleep, Wait, arun, or_undo, run
from distlock.exceptions import LockUnavailable
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted


class Executor:
    """Makes calls where it is asked to, and notes what it was given."""

    def __init__(self):
        self.given = []

    async def run(self, call, deadline=None, *, undo=None):
        self.given.append((deadline, undo))
        await asyncio.sleep(0)
        return call(deadline)


def in_a_thread(steps):
    return run(steps)


def in_a_task(steps):
    return asyncio.run(arun(steps))


DRIVERS = pytest.mark.parametrize("drive", [in_a_thread, in_a_task])


@DRIVERS
def test_a_body_that_waits_for_nothing(drive):
    def body():
        return "value"
        yield

    assert drive(body()) == "value"


@DRIVERS
def test_a_body_gets_back_what_its_steps_return(drive):
    executor, pending = Executor(), Pending()
    pending.resolve("lease")

    async def one():
        return "async"

    def inner():
        return (yield Call(lambda deadline: deadline, 5.0, executor=executor))

    def body():
        return [
            (yield from inner()),
            (yield Sleep(0)),
            (yield Wait(pending, clock())),
            (yield Wait(Pending(), clock())),
            (yield Either(lambda: "sync", one)),
        ]

    kind = "sync" if drive is in_a_thread else "async"
    assert drive(body()) == [5.0, None, True, False, kind]


async def test_a_call_of_a_task_goes_through_its_executor():
    executor = Executor()

    def undo():
        pass

    def body():
        return (yield Call(str, 3.0, undo, executor=executor))

    assert await arun(body()) == "3.0"
    assert executor.given == [(3.0, undo)]


@pytest.mark.parametrize(
    ("drive", "error"),
    [
        (in_a_thread, ValueError),
        (in_a_thread, KeyboardInterrupt),
        (in_a_thread, StopIteration),
        (in_a_task, ValueError),
    ],
)
def test_an_error_of_a_step_is_raised_where_it_was_yielded(drive, error):
    def fail(deadline):
        raise error

    def body():
        try:
            yield Call(fail, executor=Executor())
        except error:
            return (yield Call(lambda deadline: "goes on", executor=Executor()))

    assert drive(body()) == "goes on"


@DRIVERS
def test_an_error_of_the_body_is_raised_to_the_caller(drive):
    cleaned = []

    def body():
        try:
            yield Sleep(0)
            raise ValueError("of the body")
        finally:
            cleaned.append(True)

    with pytest.raises(ValueError, match="of the body"):
        drive(body())
    assert cleaned == [True]


async def test_a_cancellation_is_raised_where_the_task_waits():
    seen = []

    def body():
        try:
            yield Wait(Pending(), None)
        except BaseException as error:
            seen.append(type(error))
            raise

    task = asyncio.create_task(arun(body()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [asyncio.CancelledError]


def test_a_coroutine_that_is_given_up_cleans_up():
    seen = []

    def body():
        try:
            yield Either(lambda: None, asyncio.Event().wait)
        except BaseException as error:
            seen.append(type(error))
            raise

    loop = asyncio.new_event_loop()
    coroutine = arun(body())
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False
    loop.close()
    coroutine.close()
    assert seen == [GeneratorExit]


def test_a_signal_that_comes_at_the_end_of_a_step_is_raised_in_the_body():
    """Python handles it when the loop of run() begins its next round."""

    class Interrupt(Exception):
        pass

    class LastMoment:
        def run(self):
            # Unpacking calls the function, and does not look for signals after it.
            (_,) = map(_thread.interrupt_main, [signal.SIGUSR1])

    def on_signal(number, frame):
        raise Interrupt

    def body():
        try:
            yield LastMoment()
        except BaseException as error:
            yield Sleep(0)
            left.append(type(error))
            raise

    left = []
    handler = signal.signal(signal.SIGUSR1, on_signal)
    try:
        with pytest.raises(Interrupt):
            run(body())
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert left == [Interrupt]


def test_whenever_it_is_interrupted_the_body_has_cleaned_up_when_that_is_known():
    moment, interrupt = 1, True
    while interrupt:
        entered, left = [], []

        def body(entered=entered, left=left):
            entered.append(True)
            try:
                for _ in range(3):
                    yield Call(lambda deadline: "value", executor=Executor())
                    yield Sleep(0)
                left.append("done")
            except BaseException as error:
                yield Call(lambda deadline: "cleaned", executor=Executor())
                left.append(type(error))
                raise

        kept = body()
        # The interrupt is kept, and with it the traceback and all its frames.
        interrupt = interrupted(lambda: run(kept), moment)  # noqa: B023 - called at once
        assert left in ([["done"], [KeyboardInterrupt]] if entered else [[]])
        moment += 1
    assert moment > 10


class Guarded:
    """A body with its clean-up, and what has come of it."""

    def __init__(self, error=None):
        self.began, self.returned, self.cleaned_by = False, [], []
        self._error = error

    def run(self):
        self.returned.append(run(self.steps()))

    def steps(self):
        return or_undo(self._body(), self._clean_up)

    def _body(self):
        self.began = True
        yield Sleep(0)
        yield Call(lambda deadline: "value", executor=Executor())
        if self._error is not None:
            raise self._error
        return "result"

    def _clean_up(self, error):
        clock()  # an interrupt may come in here, too
        self.cleaned_by.append(threading.get_ident())


@pytest.mark.parametrize("error", [None, ValueError, LockUnavailable, KeyboardInterrupt])
def test_at_whatever_moment_an_interrupt_comes_a_body_has_returned_or_is_cleaned_up_after(error):
    """After an error of the body it is the second one, which comes while the first is handled."""
    moment, interrupt = 1, True
    while interrupt:
        guarded = Guarded(error)

        def drive(guarded=guarded):
            with suppress(ValueError, LockUnavailable):
                guarded.run()

        interrupt = interrupted(drive, moment)
        assert bool(guarded.returned) is (guarded.began and not guarded.cleaned_by)
        moment += 1
    assert moment > 10
    assert len(guarded.cleaned_by) == (error is not None)  # once, if nothing came between


@pytest.mark.parametrize("threads", ["there are threads", "no more threads"])
def test_a_body_that_is_garbage_is_cleaned_up_after_by_another_thread(refuse, threads):
    guarded = Guarded()
    if threads == "no more threads":
        refuse("distlock-undo", 1)
    steps = guarded.steps()
    next(steps)
    steps.close()
    eventually(lambda: guarded.cleaned_by)
    by_itself = guarded.cleaned_by == [threading.get_ident()]
    assert by_itself is (threads == "no more threads")


def test_a_soft_time_limit_ends_a_wait():
    class SoftTimeLimit(Exception):
        pass

    def handle(number, frame):
        raise SoftTimeLimit

    class Awaited(Pending):
        def wait(self, deadline):
            waiting.set()
            return super().wait(deadline)

    def send():
        if waiting.wait(20):
            signal.pthread_kill(main, signal.SIGUSR1)

    seen, waiting = [], threading.Event()

    def body():
        try:
            yield Wait(Awaited(), clock() + 20)
        except SoftTimeLimit:
            seen.append("in the body")
            raise

    before = signal.signal(signal.SIGUSR1, handle)
    main = threading.get_ident()
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(SoftTimeLimit):
            run(body())
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert seen == ["in the body"]
