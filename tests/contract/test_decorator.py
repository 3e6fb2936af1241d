"""A decorated function runs under its lock, with a hold of its own for every call."""

import asyncio
import threading

import pytest

from distlock import Lock, LockBusy, LockLost, locks
from tests.contract.actors import PATIENCE


def test_the_function_runs_under_the_lock(using, third, name):
    @Lock(name, using=using)
    def work():
        return third.tries(name)

    assert work() is False
    assert third.tries(name)


def test_an_async_function_runs_under_the_lock(using, actor, third, name):
    @Lock(name, using=using)
    async def work():
        return await Lock(name, using=using).alocked(), third.tries(name)

    assert actor("task").call(work).result(PATIENCE) == (True, False)
    assert third.tries(name)


def test_arguments_and_the_result_pass_through(using, name):
    @Lock(name, using=using)
    def work(*args, **kwargs):
        return args, kwargs

    assert work(1, "two", three=3) == ((1, "two"), {"three": 3})


def test_an_exception_passes_through_and_frees_the_lock(using, third, name):
    @Lock(name, using=using)
    def work():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert third.tries(name)


def test_the_function_does_not_run_while_someone_else_has_the_lock(using, third, name):
    ran = []

    @Lock(name, using=using, on_busy="raise")
    def work():
        ran.append(1)

    held = third.take(name)
    with pytest.raises(LockBusy):
        work()
    assert not ran
    held.release()
    work()
    assert ran == [1]


def test_calls_with_different_names_do_not_exclude_each_other(using, actor, name):
    both = threading.Barrier(2)

    @Lock(name + ":{number}", using=using)
    def work(number):
        both.wait(PATIENCE)
        return number

    calls = [actor("thread").call(work, number) for number in (1, 2)]
    assert [call.result(PATIENCE) for call in calls] == [1, 2]


def test_calls_with_the_same_name_exclude_each_other(using, actor, name):
    inside, seen = [], []

    @Lock(name + ":{number}", using=using)
    def work(number):
        inside.append(1)
        seen.append(len(inside))
        inside.pop()

    calls = [actor("thread").call(work, 7) for _ in range(4) for _ in range(5)]
    for call in calls:
        call.result(PATIENCE)
    assert seen == [1] * 20


def test_concurrent_calls_share_no_state(using, actor, name):
    """Threads and tasks call one decorated function at once, each for a lock of its own."""

    @Lock(name + ":{number}", using=using)
    def work(number):
        return number

    @Lock(name + ":{number}", using=using)
    async def awork(number):
        await asyncio.sleep(0)
        return number

    threads = [actor("thread") for _ in range(4)]
    tasks = [actor("task") for _ in range(4)]
    calls = []
    for turn in range(5):
        for number, person in enumerate(threads):
            calls.append((number * 100 + turn, person.call(work, number * 100 + turn)))
        for number, person in enumerate(tasks):
            calls.append((number * 1000 + turn, person.call(awork, number * 1000 + turn)))
    for number, call in calls:
        assert call.result(PATIENCE) == number


def test_a_function_may_call_itself(using, third, name):
    @Lock(name, using=using)
    def countdown(number):
        assert not third.tries(name)
        return number if number == 0 else countdown(number - 1)

    assert countdown(4) == 0
    assert third.tries(name)


def test_an_async_function_may_call_itself(using, actor, third, name):
    @Lock(name, using=using)
    async def countdown(number):
        return number if number == 0 else await countdown(number - 1)

    assert actor("task").call(countdown, 4).result(PATIENCE) == 0
    assert third.tries(name)


def test_a_method_is_locked_for_each_object_by_its_name(using, third, name):
    class Account:
        def __init__(self, pk):
            self.pk = pk

        @Lock(name + ":{self.pk}", using=using)
        def close(self):
            return third.tries(f"{name}:1"), third.tries(f"{name}:2")

    assert Account(1).close() == (False, True)
    assert Account(2).close() == (True, False)


def test_a_lock_lost_during_the_call_is_told(using, name):
    @Lock(name, using=using)
    def work():
        assert locks[using].force_release(name, locks[using].inspect(name).token)

    with pytest.raises(LockLost):
        work()


def test_the_lock_that_decorates_is_not_held_by_the_calls_of_others(using, actor, name):
    lock = Lock(name, using=using)

    @lock
    def work():
        return lock.held

    assert work() is True
    assert lock.held is False


def test_the_body_can_ask_for_its_lock_by_name(using, name):
    @Lock(name, using=using)
    def work():
        return Lock(name, using=using).token

    assert work() < work()
