"""RWLock: readers share, a writer is alone, and whoever waits is served in order."""

import asyncio
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from distlock import LockBusy, LockDeadlock, LockError, LockLost, LockNotHeld, LockUnavailable
from distlock.backends.local_store import LocalStore
from distlock.recipes import RWLock, Semaphore
from distlock.records.seats import Seats
from distlock.records.shared_backend import shared_locks
from distlock.types.lease import Kind
from tests.contract.actors import PATIENCE
from tests.contract.forks import forked
from tests.contract.watch import Once, eventually, waits
from tests.recipes import taking
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.referee import Referee, write

#: what a writer counts for in the log of a referee
WRITER = 1000
TURNS = 6


def reader(actor, name, **options):
    return actor.lock(name, make="reader", **options)


def writer(actor, name, **options):
    return actor.lock(name, make="writer", **options)


def take(actor, make, name, **options):
    return actor.take(name, make=make, **options)


in_queue = partial(taking.in_queue, recipe=RWLock)
queue = partial(taking.queue, recipe=RWLock)


def is_unused(using, name):
    info = RWLock(name, using=using).info()
    return not info.holders and not info.waiters


class TestExclusion:
    def test_readers_share(self, first, second, third, using, name):
        for actor in (first, second, third):
            take(actor, "reader", name).verify()
        assert len(RWLock(name, using=using).info().holders) == 3

    def test_no_writer_beside_a_reader(self, first, second, using, name):
        held, wanted = take(first, "reader", name), writer(second, name)
        assert wanted.acquire(blocking=False) is False
        held.release()
        assert wanted.acquire(timeout=PATIENCE)

    def test_nobody_beside_a_writer(self, first, second, third, using, name):
        held = take(first, "writer", name)
        assert reader(second, name).acquire(blocking=False) is False
        assert writer(third, name).acquire(timeout=0.01) is False
        assert in_queue(using, name) == 0
        held.release()
        assert reader(second, name).acquire(timeout=PATIENCE)

    def test_readers_and_writers_have_one_series_of_tokens(self, first, second, using, name):
        tokens = []
        for actor, make in [(first, "reader"), (second, "writer"), (second, "reader")] * 2:
            lock = take(actor, make, name)
            tokens.append(lock.token)
            lock.release()
        assert tokens == sorted(set(tokens))

    def test_other_kinds_of_one_name_are_others(self, first, second, using, name):
        take(first, "writer", name)
        assert second.lock(name).acquire(blocking=False)
        assert second.lock(name, make="semaphore", value=1).acquire(blocking=False)

    def test_with(self, using, name):
        lock = RWLock(name, using=using)
        with lock.reader() as one, lock.reader() as two:
            assert one.held
            assert two.token == one.token
        with lock.writer() as alone:
            assert alone.held
            assert lock.info().holders[0].writes
        assert is_unused(using, name)

    def test_async_with(self, using, name):
        async def body():
            lock = RWLock(name, using=using)
            async with lock.reader():
                task = asyncio.create_task(lock.writer().aacquire(blocking=False))
                assert await task is False
            async with lock.writer() as alone:
                await alone.averify()
                await alone.adowngrade()
                assert not (await lock.ainfo()).holders[0].writes
            return await lock.ainfo()

        assert not asyncio.run(body()).holders

    def test_as_a_decorator(self, using, name):
        @RWLock(f"{name}:{{part}}", using=using).writer()
        def change(part):
            return RWLock(f"{name}:{part}", using=using).info().holders[0].writes

        assert change("a") is True
        assert is_unused(using, f"{name}:a")

    def test_who_does_not_get_it_is_told(self, first, using, name):
        take(first, "writer", name)
        words = "rwlock .* is in use: no turn yet for this reader"
        with pytest.raises(LockBusy, match=words):
            RWLock(name, using=using, on_busy="raise").reader().__enter__()


@pytest.mark.usefixtures("nobody_is_passed_over")
class TestOrder:
    def test_a_waiting_writer_is_not_starved_by_readers(
        self, first, second, third, fourth, using, name
    ):
        held, more = take(first, "reader", name), reader(third, name)
        wants_to_write = queue(writer(second, name), using, name)
        assert more.acquire(blocking=False) is False
        wants_to_read = queue(more, using, name)
        assert waits(wants_to_write)
        held.release()
        assert wants_to_write.result(PATIENCE)
        assert not wants_to_read.done()
        second.leave().result(PATIENCE)
        assert wants_to_read.result(PATIENCE)

    def test_readers_behind_a_writer_enter_together(
        self, first, second, third, fourth, name, using
    ):
        held = take(first, "writer", name)
        readers = [queue(reader(actor, name), using, name) for actor in (second, third, fourth)]
        held.release()
        for waiting in readers:
            assert waiting.result(PATIENCE)

    def test_a_reader_enters_again_before_a_writer_who_waits(self, first, second, using, name):
        held = take(first, "reader", name)
        waiting = queue(writer(second, name), using, name)
        again = reader(first, name)
        assert again.acquire(timeout=PATIENCE)
        again.release()
        held.check()
        held.release()
        assert waiting.result(PATIENCE)


class TestBothSides:
    @pytest.mark.parametrize("limits", [{}, {"blocking": False}, {"timeout": 0.1}])
    def test_a_reader_cannot_become_the_writer(self, first, using, name, limits):
        held = take(first, "reader", name)
        with pytest.raises(LockDeadlock, match=f"rwlock '{name}': a reader cannot become"):
            writer(first, name).acquire(**limits)
        held.verify()
        held.release()
        assert writer(first, name).acquire(**limits)

    def test_the_writer_may_read(self, first, second, using, name):
        held, reads = take(first, "writer", name), reader(first, name)
        assert reads.acquire(blocking=False)
        assert reads.token == held.token
        reads.release()
        held.verify()
        assert reader(second, name).acquire(blocking=False) is False

    @pytest.mark.usefixtures("nobody_is_passed_over")
    def test_a_writer_becomes_a_reader_and_no_writer_comes_between(
        self, first, second, third, using, name
    ):
        held = take(first, "writer", name)
        token = held.token
        wants_to_read = queue(reader(second, name), using, name)
        wants_to_write = queue(writer(third, name), using, name)
        held.do("downgrade")
        assert wants_to_read.result(PATIENCE)
        assert waits(wants_to_write)
        assert not held.held
        with pytest.raises(LockNotHeld, match="is held as a reader, not as the writer"):
            held.check()
        assert reader(first, name).token == token
        reader(first, name).verify()
        held.do("downgrade")  # once more does no harm
        held.release()
        assert not wants_to_write.done()
        second.leave().result(PATIENCE)
        assert wants_to_write.result(PATIENCE)

    def test_who_was_the_writer_can_be_it_again(self, first, using, name):
        held = take(first, "writer", name)
        held.do("downgrade")
        with pytest.raises(LockDeadlock):
            held.acquire(blocking=False)
        held.release()
        assert held.acquire(timeout=PATIENCE)
        held.verify()

    def test_a_writer_who_has_entered_twice_cannot_become_a_reader(self, first, using, name):
        held = take(first, "writer", name)
        assert held.acquire()
        with pytest.raises(LockError, match="was entered 2 times by its writer"):
            held.do("downgrade")
        held.release()
        held.do("downgrade")
        held.release()
        assert is_unused(using, name)

    def test_who_holds_nothing_cannot_become_a_reader(self, first, using, name):
        with pytest.raises(LockNotHeld):
            writer(first, name).do("downgrade")

    def test_a_broken_writer_cannot_become_a_reader(self, first, third, using, name):
        held = take(first, "writer", name)
        assert writer(third, name).force_release(held.token)
        with pytest.raises(LockLost):
            held.do("downgrade")
        with pytest.raises(LockLost):
            held.release()


def test_info_tells_readers_from_the_writer(first, second, third, using, name):
    held = [
        take(first, "reader", name, description="report"),
        take(second, "reader", name),
    ]
    waiting = queue(writer(third, name), using, name)
    info = RWLock(name, using=using).info()
    assert (info.kind, info.name) == (Kind.RWLOCK, name)
    assert [holder.writes for holder in info.holders] == [False, False]
    assert [holder.token for holder in info.holders] == [lock.token for lock in held]
    assert info.holders[0].description == "report"
    assert len(info.waiters) == 1
    for lock in held:
        lock.release()
    assert waiting.result(PATIENCE)
    info = RWLock(name, using=using).info()
    assert [holder.writes for holder in info.holders] == [True]
    third.leave().result(PATIENCE)


@pytest.mark.shared
def test_a_forked_child_is_no_reader(using, name, way):
    with RWLock(name, using=using).reader() as lock:
        assert forked(_in_child, using, name, way=way) == (False, True, False)
        lock.verify()


def _in_child(using, name):
    lock = RWLock(name, using=using)
    reads = lock.reader()
    held, got = reads.held, reads.acquire(timeout=PATIENCE)
    reads.release()
    return held, got, lock.writer().acquire(blocking=False)


class TestManyAtOnce:
    @pytest.mark.every_day_on("local", "mariadb", "etcd")
    def test_a_writer_is_alone(self, actor, other, using, name, tmp_path):
        referee = Referee(tmp_path / "log")
        working = [
            actor(what).call(
                work_in_task if what == "task" else work, using, name, str(referee.path), who
            )
            for who, what in enumerate(["thread", "task", other, other])
        ]
        tokens = [token for each in working for token in each.result(4 * PATIENCE)]
        assert len(set(tokens)) == len(tokens)
        assert referee.most <= WRITER
        assert is_unused(using, name)

    def test_the_referee_sees_a_broken_rule(self, local, name, tmp_path, monkeypatch):
        """Without the rule that a writer takes all seats, it is not alone."""
        monkeypatch.setattr(Seats, "taken", 0)
        referee = Referee(tmp_path / "log")

        def is_broken():
            with ThreadPoolExecutor() as pool:
                log = str(referee.path)
                working = [pool.submit(work, "default", name, log, n) for n in range(4)]
                for each in working:
                    each.result(PATIENCE)
            return referee.most > WRITER

        eventually(is_broken)  # one after the other they break no rule


def work(using, name, log, who):
    """Read and write by turns; return the tokens."""
    lock, tokens, dice = RWLock(name, using=using), [], random.Random(who)
    for number in range(TURNS):
        writes = (number + who) % 3 == 0
        with lock.writer() if writes else lock.reader() as held:
            write(log, WRITER if writes else 1)
            tokens.append(held.token)
            time.sleep(dice.random() * 0.004)
            write(log, -WRITER if writes else -1)
    return tokens


async def work_in_task(using, name, log, who):
    """See work()."""
    lock, tokens = RWLock(name, using=using), []
    for number in range(TURNS):
        writes = (number + who) % 3 == 0
        async with lock.writer() if writes else lock.reader() as held:
            write(log, WRITER if writes else 1)
            tokens.append(held.token)
            await asyncio.sleep(0.002)
            write(log, -WRITER if writes else -1)
    return tokens


def reads_at_once(lock):
    reader = lock.reader()
    if got := reader.acquire(blocking=False):
        reader.release()
    return got


class TestDowngradeWithoutAnAnswer:
    def test_it_can_be_repeated(self, local, monkeypatch, name):
        """The reply was lost: it may have become a reader or not, and so it is one here."""
        lost, apply = [], LocalStore.apply

        def lose_the_reply(store, *args):
            revision = apply(store, *args)
            if store is local.store and not lost:  # in others, what tests have left is freed
                lost.append(revision)
                raise LockUnavailable("the reply was lost")
            return revision

        lock = RWLock(name)
        alone = lock.writer()
        alone.acquire()
        token = alone.token
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "apply", lose_the_reply)
            with pytest.raises(LockUnavailable):
                alone.downgrade()
            assert not alone.held
            alone.downgrade()
        assert lost
        assert lock.reader().token == token
        with ThreadPoolExecutor() as pool:
            assert pool.submit(reads_at_once, lock).result(PATIENCE)
        alone.release()

    def test_a_downgrade_that_never_came_keeps_others_out(self, local, monkeypatch, name):
        def refuse(*_):
            raise LockUnavailable("not now")

        lock = RWLock(name)
        alone = lock.writer()
        alone.acquire()
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "apply", refuse)
            with pytest.raises(LockUnavailable):
                alone.downgrade()
        with ThreadPoolExecutor() as pool:
            assert not pool.submit(reads_at_once, lock).result(PATIENCE)
        lock.reader().verify()
        alone.release()
        assert is_unused("default", name)


BAD = [
    ({"timeout": -2}, ValueError, "timeout"),
    ({"lease": 0}, ValueError, "lease"),
    ({"on_lost": 3}, TypeError, "on_lost"),
    ({"using": 3}, TypeError, "using"),
    ({"on_busy": "later"}, ValueError, "on_busy"),
]


@pytest.mark.parametrize(("arguments", "error", "words"), BAD)
def test_bad_input_names_the_argument(arguments, error, words):
    with pytest.raises(error, match=words):
        RWLock("catalogue", **arguments)


def test_a_reader_that_is_lost_is_told(local, name):
    told = Once()
    lock = RWLock(name, on_lost=told).reader()
    lock.acquire()
    assert lock.force_release(lock.token)
    told.wait()
    with pytest.raises(LockLost, match="rwlock"):
        lock.acquire()
    with pytest.raises(LockLost):
        lock.release()
    assert lock.acquire(blocking=False)
    lock.release()


def test_seats_of_all_kinds_are_of_one_backend(local, name):
    """Threads of one process, and the pid of the holders."""
    with RWLock(name).reader(), Semaphore(name, 2):
        listed = {(info.kind, info.name) for info in shared_locks(local).list()}
        assert listed == {(Kind.RWLOCK, name), (Kind.SEMAPHORE, name)}
        assert RWLock(name).info().owner.pid == os.getpid()
        assert RWLock(name).info().owner.thread == threading.current_thread().name
