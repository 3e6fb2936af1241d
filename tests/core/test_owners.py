"""A hold is renewed for as long as one of those who entered it lives."""

import asyncio
import threading

from distlock import Lock, State
from distlock.clock import clock
from tests.contract.watch import eventually, passed

LEASE = 0.6


def enter():
    Lock("order", owner="cart", lease=LEASE).acquire()


def test_a_named_hold_outlives_the_thread_that_took_it_while_another_is_inside(in_thread):
    inside, end = threading.Event(), threading.Event()

    def take_first():
        enter()
        inside.set()
        end.wait(30)

    first = threading.Thread(target=take_first)
    first.start()
    inside.wait(30)
    lock = Lock("order", owner="cart")
    lock.acquire()
    end.set()
    first.join()
    passed(3 * LEASE)
    lock.check()
    lock.release()
    lock.release()


def test_a_named_hold_whose_thread_has_ended_is_renewed_again_when_it_is_entered(in_thread, caplog):
    in_thread(enter)
    eventually(lambda: "ended without releasing" in caplog.text)
    lock = Lock("order", owner="cart")
    lock.acquire()
    passed(3 * LEASE)
    lock.check()
    lock.release()
    lock.release()


def test_a_hold_entered_often_keeps_no_account_of_it():
    from distlock.holdings import holdings

    with Lock("stock") as lock:
        for _ in range(50):
            lock.acquire()
        assert len(holdings.hold(("default", "stock"), lock._current_owner).lives) == 1
        for _ in range(50):
            lock.release()


def test_the_task_of_a_closed_loop_is_over():
    loop = asyncio.new_event_loop()

    async def hold():
        await Lock("stock", lease=LEASE).aacquire()
        held.set()
        await asyncio.Event().wait()

    held = asyncio.Event()
    task = loop.create_task(hold())
    loop.run_until_complete(held.wait())
    loop.close()
    end = clock() + 30
    eventually(lambda: Lock("stock").info().state is not State.HELD or clock() > end)
    assert not task.done()
    task._log_destroy_pending = False
    task.get_coro().close()
