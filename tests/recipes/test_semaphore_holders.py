"""Threads, tasks, greenlets, processes and generators that have seats, or wait for them."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from distlock import LockLost
from distlock.recipes import Semaphore
from distlock.records.seats import Seats
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.forks import forked
from tests.contract.watch import Once, eventually, steadily
from tests.recipes.every_kind import (
    FAULTS_EVERY_DAY,
    ONE_LEASE,
    pytest_generate_tests,  # noqa: F401 - pytest calls it
)
from tests.recipes.referee import Referee, work, work_in_task
from tests.recipes.taking import in_queue, is_unused, queue, seats, take


class TestManyAtOnce:
    """Threads, tasks and processes that never pause; a log says who was in when."""

    @pytest.mark.every_day_on("local", "postgresql", "zookeeper")
    def test_never_more_than_there_are(self, actor, other, using, name, tmp_path):
        referee = Referee(tmp_path / "log")
        working = [
            actor(what).call(
                work_in_task if what == "task" else work, using, name, str(referee.path), who, n
            )
            for who, (what, n) in enumerate(
                [("thread", 1), ("task", 2), (other, 1), (other, 2), ("thread", 3)]
            )
        ]
        tokens = [token for each in working for token in each.result(4 * PATIENCE)]
        assert len(set(tokens)) == len(tokens)
        assert referee.most == 3
        assert is_unused(using, name)

    def test_the_referee_sees_a_broken_rule(self, local, loop, name, tmp_path, monkeypatch):
        """Without the rule that seats are counted, more are taken than there are."""
        monkeypatch.setattr(Seats, "taken", 0)
        referee = Referee(tmp_path / "log")

        def is_broken():
            with ThreadPoolExecutor() as pool:
                log = str(referee.path)
                working = [pool.submit(work, "default", name, log, who, 2) for who in range(4)]
                for each in working:
                    each.result(PATIENCE)
            return referee.most > 3

        eventually(is_broken)  # one after the other they break no rule


@pytest.mark.faults
class TestLeases:
    def test_a_lease_of_its_own_that_runs_out(self, first, second, short, using, name):
        told = Once()
        lock = Semaphore(name, 1, using=using, lease=short, renew=False, on_lost=told)
        assert lock.acquire()
        assert seats(second, name, 1).acquire(timeout=PATIENCE)
        assert not lock.held
        told.wait()
        with pytest.raises(LockLost):
            lock.release()
        assert Semaphore(name, using=using).info().taken == 1

    def test_a_lease_of_its_own_is_renewed(self, first, second, kind, short, using, name):
        def keep(lease):
            own = f"{name}:{lease}"
            lock = take(first, own, 1, lease=lease)
            got = seats(second, own, 1).acquire(timeout=1.5 * lease)
            lock.verify()
            assert got is False

        steadily(keep, 1.2 if kind in FAULTS_EVERY_DAY else short, 4 * short)

    @pytest.mark.slow
    def test_seats_with_no_own_lease_and_no_renewal_run_out_too(self, short, kind, using, name):
        if kind in ONE_LEASE:
            lock = Semaphore(name, 1, using=using, renew=False)
            assert lock.acquire()
            eventually(lambda: not lock.held)
            assert eventually(lambda: Semaphore(name, 1, using=using).info().taken == 0)
            with pytest.raises(LockLost):
                lock.release()

    @pytest.mark.shared
    def test_a_forked_child_has_no_seats_and_can_take_some(self, first, using, name, way):
        lock = Semaphore(name, 2, using=using)
        with lock:
            answer = forked(_in_child, using, name, way=way)
            assert answer == (False, True, 2)
            lock.verify()
            assert lock.info().taken == 1


def _in_child(using, name):
    lock = Semaphore(name, 2, using=using)
    held = lock.held
    got = lock.acquire(blocking=False)
    taken = lock.info().taken
    lock.release()
    return held, got, taken


class TestCancelled:
    def test_a_cancelled_task_stands_in_no_queue(self, actor, using, name):
        held, task = take(actor("thread"), name, 1), actor("task")
        waiting = queue(seats(task, name, 1), using, name)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            waiting.result(PATIENCE)
        eventually(lambda: in_queue(using, name) == 0)
        held.release()
        assert seats(actor("thread"), name, 1).acquire(timeout=PATIENCE)

    def test_waiting_does_not_block_the_event_loop(self, using, name):
        async def both():
            async def come():
                async with Semaphore(name, 1, using=using, timeout=PATIENCE):
                    return True

            async with Semaphore(name, 1, using=using) as held:
                waiting = asyncio.create_task(come())
                while not ((await held.ainfo()).waiters or waiting.done()):
                    await asyncio.sleep(0.01)
                assert not waiting.done()
            return await waiting

        assert asyncio.run(both())

    @pytest.mark.shared
    def test_many_tasks_wait_in_one_process(self, actor, using, name):
        """More than there are threads for their calls; all of them are served."""
        held = take(actor("thread"), name, 2, n=2)

        async def crowd():
            async def one():
                async with Semaphore(name, 2, using=using, timeout=PATIENCE) as lock:
                    return lock.token

            tasks = [asyncio.create_task(one()) for _ in range(20)]
            while len((await Semaphore(name, using=using).ainfo()).waiters) < 20:
                await asyncio.sleep(0.01)
            held.release()
            return await asyncio.gather(*tasks)

        assert len(set(asyncio.run(crowd()))) == 20
        assert is_unused(using, name)


def greenlets(name):
    """As a child that gevent has patched: let greenlets take turns; say whether there was room."""
    import gevent

    inside, most = [], []

    def turn():
        with Semaphore(name, 2):
            inside.append(None)
            most.append(len(inside))
            gevent.sleep(0.005)
            inside.pop()

    gevent.joinall([gevent.spawn(turn) for _ in range(10)], raise_error=True)
    write_line(len(most), max(most) <= 2)


@pytest.mark.slow
@pytest.mark.shared
def test_greenlets_take_seats_of_their_own(child, using, name):
    taking = child(greenlets, name, gevent=True)
    assert taking.finish() == ["10 True"]
    assert is_unused(using, name)


class TestBlocks:
    """``with`` in unusual places, on the backend of one process."""

    def test_blocks_of_a_generator_that_another_thread_ends(self, local, name):
        def nested():
            lock = Semaphore(name, 3)
            with lock, lock:
                yield lock

        generator = nested()
        next(generator)
        thread = threading.Thread(target=generator.close)
        thread.start()
        thread.join(PATIENCE)
        eventually(lambda: is_unused("default", name))

    def test_a_generator_leaves_its_own_seats_and_not_the_last(self, local, name):
        def one():
            with Semaphore(name, 3):
                yield

        generator = one()
        next(generator)
        lock = Semaphore(name, 3)
        with lock:
            token = lock.token
            generator.close()
            eventually(lambda: lock.info().taken == 1)
            assert lock.token == token
            lock.verify()

    def test_blocks_in_an_exit_stack(self, local, name):
        lock = Semaphore(name, 3)
        with contextlib.ExitStack() as stack:
            tokens = [stack.enter_context(lock).token for _ in range(3)]
            assert lock.info().taken == 3
        assert tokens == sorted(set(tokens))
        assert is_unused("default", name)

    def test_an_error_of_the_body_goes_on(self, local, name):
        with pytest.raises(ZeroDivisionError), Semaphore(name, 3):
            raise ZeroDivisionError
        assert is_unused("default", name)


def test_an_event_loop_is_not_blocked(local):
    async def body():
        with pytest.raises(SynchronousOnlyOperation, match=r"^acquire\(\).*async with"):
            Semaphore("mailer", 1).acquire()
        with pytest.raises(SynchronousOnlyOperation, match=r"`await lock.ainfo\(\)`\.$"):
            Semaphore("mailer", 1).info()

    asyncio.run(body())
