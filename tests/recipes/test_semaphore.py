"""Semaphore: never more than so many seats taken, first come, first served, on every backend."""

import asyncio

import pytest
from django.db import transaction

from distlock import (
    LockBusy,
    LockError,
    LockLost,
    LockNotHeld,
    ReleasedInTransaction,
    locks,
)
from distlock.backends.reading import together
from distlock.locking.run_under import run_under
from distlock.recipes import Semaphore
from distlock.records.shared_backend import shared_locks
from distlock.types.lease import Claim, Kind
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, steadily, waits
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.taking import in_queue, is_unused, queue, seats, take


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
        with Semaphore(name, 1, using=using), pytest.raises(LockBusy, match="no seat was free"):
            Semaphore(name, 1, using=using, on_busy="raise").__enter__()

    def test_who_finds_no_seat_does_without(self, first, using, name):
        @Semaphore(name, 1, using=using, on_busy="skip", busy_result="later")
        def send():
            return "sent"

        taken = first.take(name, make="semaphore", value=1, description="the news")
        with Semaphore(name, 1, using=using).attempt() as acquired:
            assert not acquired
        assert send() == "later"
        with pytest.raises(LockBusy) as caught, Semaphore(name, 1, using=using, on_busy="raise"):
            pass
        assert (caught.value.holder.token, caught.value.holder.description) == (
            taken.token,
            "the news",
        )
        taken.release()
        assert send() == "sent"

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


@pytest.mark.usefixtures("nobody_is_passed_over")
class TestOrder:
    def test_first_come_first_served(self, actor, other, using, name):
        held = take(actor("thread"), name, 1)
        tokens, futures = [], []
        for what in ["thread", other, "task", "thread"]:
            lock = seats(actor(what), name, 1)
            futures.append((lock, queue(lock, using, name)))
        held.release()
        for lock, future in futures:
            assert future.result(PATIENCE)
            tokens.append(lock.token)
            lock.release()
        assert tokens == sorted(tokens)

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
        def give_up_after(seconds):
            own = f"{name}:{seconds}"
            held = take(actor("thread"), own, 2, n=2)
            impatient = seats(actor(other), own, 2, n=2).start("acquire", timeout=seconds)
            eventually(lambda: impatient.done() or in_queue(using, own) == 1)
            next_one = seats(actor("task"), own, 2).start("acquire", timeout=PATIENCE)
            eventually(lambda: impatient.done() or in_queue(using, own) == 2)
            if impatient.done():
                raise LockError("the machine has stood still until it was time to give up")
            assert impatient.result(PATIENCE) is False
            assert waits(next_one)
            held.release()
            assert next_one.result(PATIENCE)

        steadily(give_up_after, 0.5, 5.0)


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


def test_what_an_acquire_goes_by_is_never_read_ahead(using, name):
    """As in a handler of a signal that comes while somebody makes a list."""
    backend, semaphore = shared_locks(locks[using]), Semaphore(name, 1, using=using)
    claim = Claim(name, "somebody", 30.0, kind=Kind.SEMAPHORE)

    def look(_):
        before = backend.is_held(claim)
        with semaphore:
            return before, backend.is_held(claim)

    assert dict(together([name], look)) == {name: (False, True)}


@pytest.mark.django_db(transaction=True)
def test_leaving_inside_an_open_transaction_warns_and_advises_nothing_that_it_cannot(local):
    lock = Semaphore("mailer", 1)
    with transaction.atomic(), pytest.warns(ReleasedInTransaction) as caught, lock:
        pass
    said = next(str(one.message) for one in caught if one.category is ReleasedInTransaction)
    assert said.startswith("semaphore 'mailer' was released inside a transaction")
    assert "atomic()" not in said


def test_the_log_says_that_it_was_a_semaphore_that_was_broken(local, caplog):
    lock = Semaphore("mailer", 1)
    lock.acquire()
    assert lock.force_release(lock.token)
    assert "broke semaphore 'mailer' on 'default', token" in caplog.text
    with pytest.raises(LockLost):
        lock.release()
