"""Semaphore: never more than so many seats taken, first come, first served, on every backend."""

import asyncio
import contextlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from distlock import (
    LockError,
    LockLost,
    LockNotHeld,
    LockTimeout,
    NotSupported,
    ReleasedInTransaction,
    locks,
)
from distlock.backends.seats import Seats
from distlock.core.section import run_under
from distlock.recipes import Semaphore
from distlock.types.lease import Kind
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.forks import forked
from tests.contract.watch import Once, eventually, waits
from tests.recipes.every_kind import (  # noqa: F401 - pytest calls it
    ONE_LEASE,
    ONE_PROCESS,
    pytest_generate_tests,
)
from tests.recipes.referee import Referee, work, work_in_task


def seats(actor, name, value=3, **options):
    """Return a semaphore that belongs to an actor."""
    return actor.lock(name, value=value, make="semaphore", **options)


def take(actor, name, value=3, **options):
    """Return a semaphore of which an actor has seats."""
    return actor.take(name, value=value, make="semaphore", **options)


def in_queue(using, name):
    return len(Semaphore(name, using=using).info().waiters)


def queue(lock, using, name, **options):
    """Let someone wait for seats; return the future once it stands in the queue."""
    before = in_queue(using, name)
    waiting = lock.start("acquire", **options)
    eventually(lambda: in_queue(using, name) > before)
    return waiting


def is_unused(using, name):
    """Return whether nobody has a seat or waits for one."""
    info = Semaphore(name, using=using).info()
    return info.taken == 0 and info.waiters == ()


class TestSeats:
    def test_as_many_as_there_are_can_be_taken(self, first, second, third, using, name):
        take(first, name, 2)
        take(second, name, 2)
        assert seats(third, name, 2).acquire(blocking=False) is False

    def test_a_seat_that_is_left_can_be_taken(self, first, second, using, name):
        held = take(first, name, 1)
        wanted = seats(second, name, 1)
        assert wanted.acquire(blocking=False) is False
        held.release()
        assert eventually(lambda: wanted.acquire(blocking=False))

    def test_several_are_taken_at_once_or_none(self, first, second, using, name):
        held = take(first, name, 3, n=2)
        assert seats(second, name, 3, n=2).acquire(blocking=False) is False
        assert seats(second, name, 3).acquire(blocking=False) is True
        assert Semaphore(name, using=using).info().taken == 3
        held.release()
        assert Semaphore(name, using=using).info().taken == 1

    def test_each_acquire_takes_seats_of_its_own_and_release_leaves_the_last(
        self, first, using, name
    ):
        lock = take(first, name, 3)
        earlier = lock.token
        assert lock.do("acquire", n=2)
        assert lock.token > earlier
        assert Semaphore(name, using=using).info().taken == 3
        lock.release()
        assert lock.token == earlier
        lock.release()
        assert is_unused(using, name)
        with pytest.raises(LockNotHeld, match=f"semaphore '{name}' on 'default' is not held"):
            lock.release()

    def test_tokens_grow_with_every_grant(self, first, second, using, name):
        tokens = []
        for _ in range(3):
            held = [take(first, name, 2), take(second, name, 2)]
            for lock in held:
                tokens.append(lock.token)
                lock.release()
        assert tokens == sorted(set(tokens))

    def test_who_has_a_seat_knows_it(self, first, second, using, name):
        lock = take(first, name, 2)
        lock.check()
        lock.verify()
        assert lock.held
        assert 0 < lock.remaining <= locks[using].settings.lease
        other = seats(second, name, 2)
        assert not other.held
        with pytest.raises(LockNotHeld):
            other.check()

    def test_time_runs_out(self, first, second, using, name):
        take(first, name, 1)
        assert seats(second, name, 1).acquire(timeout=0.05) is False
        assert in_queue(using, name) == 0

    def test_another_name_and_a_lock_of_the_same_name_are_others(self, first, second, using, name):
        take(first, name, 1)
        assert seats(second, f"{name}:b", 1).acquire(blocking=False)
        assert second.lock(name).acquire(blocking=False)

    def test_locked_means_that_one_would_have_to_wait(self, first, second, using, name):
        lock = take(first, name, 2)
        assert lock.locked() is False
        take(second, name, 2)
        assert lock.locked() is True

    def test_with(self, using, name):
        lock = Semaphore(name, 3, using=using)
        with lock as one, lock as two:
            assert one is two is lock
            assert lock.info().taken == 2
        assert is_unused(using, name)
        with Semaphore(name, 1, using=using), pytest.raises(LockTimeout, match="no seat was free"):
            Semaphore(name, 1, using=using, blocking=False).__enter__()

    def test_async_with(self, using, name):
        async def body():
            lock = Semaphore(name, 3, using=using, n=2)
            async with lock:
                assert (await lock.ainfo()).taken == 2
                assert not await lock.aacquire(blocking=False)
                assert await lock.alocked()
                await lock.averify()
            return await lock.ainfo()

        assert asyncio.run(body()).taken == 0

    def test_run_under(self, using, name):
        lock = Semaphore(name, 2, using=using)
        assert run_under(lock, lock.acquire, lambda: lock.info().taken, print) == 1
        assert is_unused(using, name)

    def test_as_a_decorator_whose_name_is_a_template(self, using, name):
        @Semaphore(f"{name}:{{customer}}", 2, using=using)
        def send(customer):
            return Semaphore(f"{name}:{customer}", using=using).info().taken

        @Semaphore(f"{name}:{{customer}}", 2, using=using, n=2)
        async def asend(customer):
            return (await Semaphore(f"{name}:{customer}", using=using).ainfo()).taken

        assert send("ann") == 1
        assert asyncio.run(asend("ben")) == 2
        assert is_unused(using, f"{name}:ann")


class TestOrder:
    def test_first_come_first_served(self, actor, other, using, name):
        held = take(actor("thread"), name, 1)
        order, futures = [], []
        for number, what in enumerate(["thread", other, "task", "thread"]):
            lock = seats(actor(what), name, 1)
            future = queue(lock, using, name)
            future.add_done_callback(lambda _, number=number: order.append(number))
            futures.append((lock, future))
        held.release()
        for lock, future in futures:
            assert future.result(PATIENCE)
            lock.release()
        assert order == [0, 1, 2, 3]

    def test_who_wants_many_is_not_starved_by_those_who_want_one(
        self, actor, other, third, using, name
    ):
        held = [take(third, name, 3) for _ in range(2)]
        many, one = seats(actor(other), name, 3, n=3), seats(actor("task"), name, 3)
        wants_many = queue(many, using, name)
        wants_one = queue(one, using, name)
        assert seats(actor("thread"), name, 3).acquire(blocking=False) is False
        held[0].release()
        assert waits(wants_many)
        assert not wants_one.done()
        held[1].release()
        assert wants_many.result(PATIENCE)
        assert waits(wants_one)
        many.release()
        assert wants_one.result(PATIENCE)

    def test_a_newcomer_does_not_overtake(self, first, second, using, name):
        hers, his = take(first, name, 1), seats(second, name, 1)
        for _ in range(3):
            waiting = queue(his, using, name)
            hers.release()
            assert hers.acquire(blocking=False) is False
            assert waiting.result(PATIENCE)
            hers, his = his, hers

    def test_who_gives_up_lets_the_next_come(self, actor, other, using, name):
        held = take(actor("thread"), name, 2, n=2)
        impatient = queue(seats(actor(other), name, 2, n=2), using, name, timeout=0.5)
        next_one = queue(seats(actor("task"), name, 2), using, name)
        held.do("acquire", blocking=False)
        assert impatient.result(PATIENCE) is False
        held.release()
        assert next_one.result(PATIENCE)


class TestInfo:
    def test_it_has_all_holders_and_all_waiters_in_order(
        self, first, second, third, fourth, using, name
    ):
        one = take(first, name, 5, n=2, description="newsletter")
        two = take(second, name, 5)
        lines = [seats(third, name, 5, n=5), seats(fourth, name, 5)]
        for lock in lines:
            queue(lock, using, name)
        info = Semaphore(name, using=using).info()
        assert (info.kind, info.name, info.slots, info.taken) == (Kind.SEMAPHORE, name, 5, 3)
        assert [holder.token for holder in info.holders] == [one.token, two.token]
        assert [holder.seats for holder in info.holders] == [2, 1]
        assert [holder.description for holder in info.holders][0] == "newsletter"
        assert info.owner == info.holders[0].owner
        assert len(info.waiters) == 2
        assert [waiting.waited >= 0 for waiting in info.waiters] == [True, True]
        assert info.waiters[0].waited >= info.waiters[1].waited
        one.release()
        two.release()

    def test_the_backend_lists_it(self, first, backend, using, name):
        take(first, name, 2)
        shared = Semaphore(name, using=using)._backend
        assert [info.name for info in shared.list(name[:20]) if info.name == name] == [name]
        assert [info for info in backend.list(name[:20]) if info.name == name] == []

    def test_one_seat_is_broken_by_its_token(self, first, second, using, name):
        told = Once()
        broken = Semaphore(name, 2, using=using, on_lost=told)
        assert broken.acquire()
        stays = take(second, name, 2)
        token = broken.token
        assert first.lock(name, value=2, make="semaphore").force_release(token) is True
        assert first.lock(name, value=2, make="semaphore").force_release(token) is False
        with pytest.raises(LockLost):
            broken.verify()
        told.wait()
        with pytest.raises(LockLost):
            broken.release()
        stays.verify()
        assert Semaphore(name, using=using).info().taken == 1


class TestValue:
    def test_another_value_is_refused_while_it_is_in_use(self, first, second, using, name):
        held = take(first, name, 3)
        other = seats(second, name, 4)
        with pytest.raises(LockError, match=f"value=4: semaphore '{name}' has 3 seats"):
            other.acquire(blocking=False)
        with pytest.raises(LockError, match="value=4: .* 3 seats"):
            other.acquire(timeout=PATIENCE)
        held.release()
        assert in_queue(using, name) == 0

    def test_another_value_is_adopted_when_nobody_uses_it(self, first, using, name, caplog):
        caplog.set_level(logging.INFO, logger="distlock")
        take(first, name, 3).release()
        with Semaphore(name, 4, using=using):
            assert Semaphore(name, using=using).info().slots == 4
        said = [record.getMessage() for record in caplog.records if name in record.getMessage()]
        assert said == [f"semaphore '{name}' on 'default' has 4 seats from now on, it had 3"]

    def test_none_takes_what_was_said(self, first, second, using, name):
        nobody = seats(second, name, None)
        unsaid = f"semaphore '{name}': value was not given.* resize --using=default NAME NUMBER"
        with pytest.raises(LockError, match=unsaid):
            nobody.acquire(blocking=False)
        take(first, name, 1)
        assert nobody.acquire(blocking=False) is False
        with pytest.raises(LockError, match=f"n=2: semaphore '{name}' has 1 seats in all"):
            seats(second, name, None, n=2).acquire()

    def test_more_seats_wake_those_who_wait(self, first, second, third, using, name):
        take(first, name, 1)
        two = queue(seats(second, name, None), using, name)
        three = queue(seats(third, name, None), using, name)
        assert Semaphore(name, using=using).resize(3) == 1
        assert two.result(PATIENCE)
        assert three.result(PATIENCE)
        with pytest.raises(LockError, match="value=1: .* 3 seats"):
            seats(first, name, 1).acquire(blocking=False)

    def test_fewer_seats_evict_nobody(self, first, second, third, using, name):
        held = [take(first, name, 3), take(first, name, None), take(second, name, None)]
        assert seats(first, name, None).do("resize", 1) == 3
        waiting = queue(seats(third, name, None), using, name)
        for lock in held:
            lock.verify()
        held[2].release()
        held[0].release()
        assert waits(waiting)
        held[1].release()
        assert waiting.result(PATIENCE)

    def test_a_waiter_for_more_than_there_are_now_is_told(self, first, second, using, name):
        take(first, name, 3)
        waiting = queue(seats(second, name, None, n=3), using, name)
        seats(first, name, None).do("resize", 2)
        with pytest.raises(LockError, match="n=3: .* 2 seats in all"):
            waiting.result(PATIENCE)
        eventually(lambda: in_queue(using, name) == 0)

    def test_resize_is_known_to_the_object(self, using, name):
        lock = Semaphore(name, 2, using=using)
        assert lock.resize(4) is None
        assert lock.value == 4
        assert asyncio.run(lock.aresize(5)) == 4
        with lock:
            assert lock.info().slots == 5


BAD = [
    ({"value": 0}, ValueError, "value must be at least 1"),
    ({"value": -1}, ValueError, "value must be at least 1"),
    ({"value": 2.0}, TypeError, "value must be a whole number"),
    ({"value": True}, TypeError, "value must be a whole number"),
    ({"value": "3"}, TypeError, "value must be a whole number"),
    ({"value": 2**31}, ValueError, "value must be at least 1 and less than"),
    ({"value": 3, "n": 0}, ValueError, "n must be at least 1"),
    ({"value": 3, "n": 4}, ValueError, "n must be at most value=3, got 4"),
    ({"value": 3, "n": None}, TypeError, "n must be a whole number"),
    ({"value": 3, "lease": 0}, ValueError, "lease"),
    ({"value": 3, "timeout": -2}, ValueError, "timeout"),
    ({"value": 3, "on_lost": 1}, TypeError, "on_lost"),
    ({"value": 3, "using": None}, TypeError, "using"),
]


@pytest.mark.parametrize(("arguments", "error", "words"), BAD)
def test_bad_input_names_the_argument(arguments, error, words):
    with pytest.raises(error, match=words):
        Semaphore("mailer", **arguments)


@pytest.mark.parametrize(
    ("n", "error"), [(0, ValueError), (4, ValueError), ("2", TypeError), (True, TypeError)]
)
def test_a_bad_number_of_seats_is_refused_by_acquire(local, n, error):
    lock = Semaphore("mailer", 3)
    with pytest.raises(error, match="^n must be"):
        lock.acquire(n=n)
    with pytest.raises(error, match="^value must be"):
        lock.resize(n if n != 4 else -4)


def test_a_number_in_the_place_of_blocking_is_refused(local):
    with pytest.raises(TypeError, match="^blocking must be True or False, not 2$"):
        Semaphore("mailer", 3).acquire(2)


def test_it_is_not_known_how_many_seats_there_are_before_anyone_has_said(local):
    assert Semaphore("mailer").info().slots == 0
    assert Semaphore("mailer").locked()
    assert not Semaphore("mailer", 1).locked()


@pytest.mark.django_db(transaction=True)
def test_leaving_inside_an_open_transaction_warns_and_advises_nothing_that_it_cannot(local):
    lock = Semaphore("mailer", 1)
    with transaction.atomic(), pytest.warns(ReleasedInTransaction) as caught, lock:
        pass
    said = str(caught[0].message)
    assert said.startswith("semaphore 'mailer' was released inside a transaction")
    assert "atomic()" not in said


def test_the_log_says_that_it_was_a_semaphore_that_was_broken(local, caplog):
    lock = Semaphore("mailer", 1)
    lock.acquire()
    assert lock.force_release(lock.token)
    assert "broke semaphore 'mailer' on 'default', token" in caplog.text
    with pytest.raises(LockLost):
        lock.release()


def test_what_resize_has_said_is_overruled_when_nobody_uses_it(local):
    Semaphore("mailer").resize(5)
    with Semaphore("mailer", 3), pytest.raises(LockError, match="value=5: .* 3 seats"):
        Semaphore("mailer", 5).acquire()


def test_an_event_loop_is_not_blocked(local):
    async def body():
        with pytest.raises(SynchronousOnlyOperation, match=r"^acquire\(\).*async with"):
            Semaphore("mailer", 1).acquire()
        with pytest.raises(SynchronousOnlyOperation, match=r"`await lock.ainfo\(\)`\.$"):
            Semaphore("mailer", 1).info()

    asyncio.run(body())


class TestManyAtOnce:
    """Threads, tasks and processes that never pause; a log says who was in when."""

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
        with ThreadPoolExecutor() as pool:
            working = [
                pool.submit(work, "default", name, str(referee.path), who, 2) for who in range(4)
            ]
            for each in working:
                each.result(PATIENCE)
        assert referee.most > 3


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

    def test_a_lease_of_its_own_is_renewed(self, first, second, short, using, name):
        lock = take(first, name, 1, lease=short)
        assert seats(second, name, 1).acquire(timeout=1.5 * short) is False
        lock.verify()

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
    def test_a_forked_child_has_no_seats_and_can_take_some(self, first, using, name):
        lock = Semaphore(name, 2, using=using)
        with lock:
            answer = forked(_in_child, using, name)
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
            async with Semaphore(name, 1, using=using):
                waiting = asyncio.create_task(Semaphore(name, 1, using=using).aacquire(timeout=0.3))
                ticks = 0
                while not waiting.done():
                    await asyncio.sleep(0.01)
                    ticks += 1
                return waiting.result(), ticks

        got, ticks = asyncio.run(both())
        assert got is False
        assert ticks > 3

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
    taking = child("tests.recipes.test_semaphore:greenlets", name, gevent=True)
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


def test_at_least_and_owner_are_for_locks():
    with pytest.raises(TypeError):
        Semaphore("mailer", 3, at_least=3)
    with pytest.raises(TypeError):
        Semaphore("mailer", 3, owner="ann")


def test_a_backend_without_records_says_so(settings):
    settings.DISTLOCK = {"default": {"BACKEND": "tests.recipes.test_semaphore.WithoutStore"}}
    with pytest.raises(NotSupported, match="keeps locks only"):
        Semaphore("mailer", 3).acquire()
    locks.close_all()


from distlock.backends.local import LocalBackend  # noqa: E402


class WithoutStore(LocalBackend):
    """As a backend of somebody else."""

    @property
    def store(self):
        raise NotSupported(f"DISTLOCK[{self.alias!r}]: WithoutStore keeps locks only")
