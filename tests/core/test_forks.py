"""A child of a fork has nothing to do with what its parent holds, or was doing."""

import contextlib
import gc
import os
import signal
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from django.dispatch import Signal

from distlock import Lock, locks
from distlock.backends.database.sqlite_session import gate
from distlock.backends.local import LocalBackend
from distlock.backends.store import Put
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Latch
from distlock.concurrency.steps import Sleep
from distlock.exceptions import BodyEnded, LockError
from distlock.locking import until_commit
from distlock.locking.run_under import ThreadInterrupter, body_interrupter
from distlock.locking.until_commit import OpenTransactions
from distlock.recipes import Config, Election, Group, Progress, RWLock, Semaphore
from distlock.signals import lock_acquired
from distlock.types.lease import Claim, Kind, LockKey
from distlock.types.owners import current_owner
from tests.children import write_line
from tests.contract.forks import WAYS, forked
from tests.contract.watch import eventually
from tests.kinds import KINDS, ONE_LEASE, SHARED

MUTEXES = type(threading.Lock()), type(threading.RLock())


@pytest.fixture
def lasting(kind):
    """Let a session last while nothing can renew it, as the test has the mutexes for that."""
    return {"OPTIONS": {"session_timeout": 60}} if kind in ONE_LEASE else {}


def in_child(function, way):
    """Run a function in a fork of this process; return its exit code, as os.wait() does."""
    pid = WAYS[way]()
    if pid == 0:
        threading.Timer(20, os._exit, [9]).start()
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def test_the_parents_keeper_is_not_told_by_the_child(way):
    with Lock("stock"):
        assert locks["default"].listener is not None

        def look():
            os._exit(0 if locks["default"].listener is None else 1)

        assert in_child(look, way) == 0


class BackendOfOneProcess(LocalBackend):
    """One that cannot be made in a child: its key file is root's, say, and the child is not."""

    made_in = os.getpid()

    def __init__(self, alias, params):
        if os.getpid() != self.made_in:
            raise PermissionError("the key cannot be read any more")
        super().__init__(alias, params)


def test_a_backend_that_cannot_begin_in_the_child_keeps_no_other_the_parents(settings, way):
    path = f"{LocalBackend.__module__}.{LocalBackend.__name__}"
    settings.DISTLOCK = {
        "first": {"BACKEND": BackendOfOneProcess},
        **{alias: {"BACKEND": path} for alias in "abcdef"},
    }
    with contextlib.ExitStack() as entered:
        for alias in ["a", "b", "c", "first", "d", "e", "f"]:
            entered.enter_context(Lock("stock", using=alias))
        before = locks["a"]
        namesake = BackendOfOneProcess("a", {})  # somebody's own, or one that is closed meanwhile

        def look():
            assert namesake.alias == before.alias
            assert locks["a"] is before
            with pytest.raises(PermissionError):
                Lock("stock", using="first").acquire()
            assert all(Lock("stock", using=alias).acquire(blocking=False) for alias in "abcdef")

        assert in_child(look, way) == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_request_that_goes_on_in_parent_and_child_is_granted_to_one(
    kind, backend_settings, settings, name, way
):
    """A signal handler forks, and returns in both; with gevent, all greenlets go on in both."""
    settings.DISTLOCK = backend_settings(kind)
    backend, parent, lock, codes = locks["default"], os.getpid(), Lock(name), []
    first = backend.try_acquire(Claim(name, current_owner(), 60.0))

    def fork_here(*_):
        codes.append(WAYS[way]())
        if os.getpid() != parent:
            threading.Timer(40, os._exit, [9]).start()
        else:
            threading.Thread(target=backend.release, args=(first,)).start()

    before = signal.signal(signal.SIGUSR1, fork_here)
    main = threading.main_thread().ident
    threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGUSR1]).start()
    code = 1
    try:
        got = lock.acquire(timeout=15)
    except LockError:
        code = 0
    finally:
        if os.getpid() != parent:
            os._exit(code)
        signal.signal(signal.SIGUSR1, before)
    assert got and os.waitpid(codes[0], 0)[1] == 0
    lock.verify()
    lock.release()


def test_the_child_may_forget_the_threads_of_its_parent(way):
    """CPython from 3.13 on crashes if it deletes one whose memory the child has given back."""
    ended, end = threading.Event(), threading.Event()
    threads = [threading.Thread(target=one.wait) for one in [ended] * 8 + [end] * 8]
    for thread in threads:
        thread.start()
    ended.set()
    eventually(lambda: sum(thread.is_alive() for thread in threads) == 8)

    def forget():
        with Lock("stock"):
            threads.clear()
            gc.collect()

    try:
        forked(forget, way=way)
    finally:
        end.set()


def test_the_end_of_a_child_waits_for_no_thread_of_its_parent(way):
    """One that frees what a rolled back transaction had kept: it is not there in the child."""
    ended, transactions = threading.Event(), SimpleNamespace(_leave=lambda: ended.wait(60))
    OpenTransactions._leave_soon(transactions)

    def end():
        began = clock()
        until_commit._join_leaving()
        return clock() - began

    try:
        assert forked(end, way=way) < 1
    finally:
        ended.set()


def test_a_loss_that_another_thread_was_telling_of_at_the_fork_hangs_no_child(monkeypatch, way):
    """It was about to raise in the body of this thread, which goes on in the child."""
    inside, go_on, ended, codes = threading.Event(), threading.Event(), threading.Event(), []
    lease = SimpleNamespace(claim=SimpleNamespace(kind="lock"), name="stock", token=1)

    def be_about_to_raise(body, loss):
        inside.set()
        go_on.wait(60)
        body._sent.set()

    def leave(body):
        with pytest.raises(BodyEnded), body:
            assert inside.wait(60)

    def run_a_body():
        body = body_interrupter()
        telling = threading.Thread(target=body.on_lost, args=(lease,))
        telling.start()
        codes.append(in_child(partial(leave, body), way))
        go_on.set()
        telling.join()
        leave(body)
        ended.set()

    monkeypatch.setattr(ThreadInterrupter, "raise_in_body", be_about_to_raise)
    threading.Thread(target=run_a_body).start()
    assert ended.wait(60)
    assert codes == [0]


def test_a_signal_being_sent_at_the_fork_can_be_sent_in_the_child(way):
    inside, end = threading.Event(), threading.Event()

    def send():
        with lock_acquired.lock:
            inside.set()
            end.wait(30)

    def receive(**kwargs):
        pass

    sender = threading.Thread(target=send)
    lock_acquired.connect(receive)
    sender.start()
    inside.wait(30)
    try:
        assert in_child(lambda: Lock("stock").acquire(), way) == 0
    finally:
        end.set()
        sender.join()
        lock_acquired.disconnect(receive)


async def test_a_forsaken_task_of_the_parent_withdraws_nothing_in_the_child(
    backend, monkeypatch, way
):
    def never(claim, deadline):
        yield Sleep(3600)

    monkeypatch.setattr(backend, "enqueue", never)
    waiting = Lock("stock").aacquire()
    waiting.send(None)  # until the backend has been asked
    before = set(threading.enumerate())  # a child that was forked without hooks lists them, too

    def collect():
        nonlocal waiting
        waiting = None
        gc.collect()
        names = {thread.name for thread in set(threading.enumerate()) - before}
        os._exit(1 if names & {"distlock-undo", "distlock-cleanup"} else 0)

    assert in_child(collect, way) == 0
    waiting.close()


def test_what_the_parent_would_take_back_is_not_taken_back_in_the_child(backend, way):
    """As a body of steps may do that the parent has begun, and that ends in the child."""
    with Lock("stock") as lock:
        lease, cleanup = lock._hold.lease, backend.cleanup

        def add():
            before = set(threading.enumerate())
            cleanup.add(lease.claim)
            return backend.cleanup is cleanup, cleanup.pending, set(threading.enumerate()) - before

        assert forked(add, way=way) == (False, {}, set())
        lock.verify()


def mutexes():
    """Return the mutexes of the package that are there now, apart from what is waited for."""
    found = {}
    for obj in gc.get_objects():
        if str(type(obj).__module__).startswith("distlock.") or type(obj) is Signal:
            names = [*getattr(type(obj), "__slots__", ()), *getattr(obj, "__dict__", ())]
            for value in (getattr(obj, name, None) for name in names):
                if isinstance(value, MUTEXES) and type(obj) is not Latch:
                    found[id(value)] = value
    return list(found.values())


@contextlib.contextmanager
def all_held(way):
    """Let another thread have each mutex of the package."""
    # A fork whose hooks are called waits for the gate.
    held = [one for one in mutexes() if one is not gate.closed or way != "os.fork"]
    begun, go_on = threading.Event(), threading.Event()

    def hold():
        for mutex in held:
            mutex.acquire()
        begun.set()
        go_on.wait(60)
        for mutex in held:
            mutex.release()

    holding = threading.Thread(target=hold)
    holding.start()
    assert begun.wait(60)
    try:
        yield
    finally:
        go_on.set()
        holding.join()


def hold_all_and_fork(name, way):
    """As a child: fork while another thread has each mutex of the package."""
    with Config(f"{name}:config").watch([].append), Election(f"{name}:election"):
        group, progress = Group(f"{name}:group"), Progress(f"{name}:work").start()
        group.join()
        with Lock(name) as lock, Semaphore(name, 2), RWLock(name).reader():
            with all_held(way):
                write_line(forked(use_all, name, lock, group, progress, way=way))
            lock.verify()
        progress.finish()
        group.leave()


def use_all(name, lock, group, progress):
    held = lock.held, group.joined, Semaphore(name, 2).held
    progress.advance()
    progress.finish()
    lock_acquired.connect(print)
    lock_acquired.disconnect(print)
    with Lock(f"{name}:own"), Semaphore(f"{name}:own", 2), RWLock(f"{name}:own").writer():
        Config(f"{name}:config").set(1)
        with Group(f"{name}:group", "child"), Progress(f"{name}:own") as work:
            work.advance()
    with Election(f"{name}:own") as election:
        return *held, election.leading


@pytest.mark.every_day_on("local", "postgresql")
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutex_that_another_thread_has_hangs_no_child(
    child, kind, backend_settings, lasting, settings, name
):
    settings.DISTLOCK = backend_settings(kind, **lasting)
    holder = child(hold_all_and_fork, name, "without hooks")
    assert holder.finish() == ["(False, False, False, True)"]


def keep_a_store(name, way):
    """As a child: use one store here, in a fork and in a fork of that."""
    store, directory = locks["default"].store, LockKey("default", Kind.GROUP, name).directory
    session = store.open_session(30.0)
    store.apply(directory, [Put("seen", {"by": "parent"})], ())

    def use():
        assert locks["default"].store is store
        gc.collect()  # all that it needs is its own
        own = store.open_session(30.0)
        store.apply(directory, [Put("own", {"by": "child"}, session=own.id)], ())
        seen = sorted(store.read(directory).records)
        store.end_session(own.id)
        return seen

    def use_in_a_grandchild():
        return use(), forked(use, way=way)

    with all_held(way):
        write_line(*forked(use_in_a_grandchild, way=way))
    write_line(session.id in store.renew([session.id], ()).alive)
    store.end_session(session.id)


@pytest.mark.every_day_on("local", "postgresql")
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_kept_over_a_fork_is_that_of_the_child(
    child, kind, backend_settings, lasting, settings, name, way
):
    """Even if another thread had its mutexes at the fork, and had waited for it before."""
    settings.DISTLOCK = backend_settings(kind, **lasting)
    seen = ["own"] if kind == "local" else ["own", "seen"]
    assert child(keep_a_store, name, way).finish() == [f"{seen} {seen}", "True"]


def end_a_child(name, way):
    """As a child: fork, and let that process end as processes do, with all destructors."""
    group = Group(f"{name}:group")
    member = group.join()
    with Lock(name) as lock:
        token = lock.token
        if not (pid := WAYS[way]()):
            raise SystemExit(0)
        write_line(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        lock.verify()
        with Lock(f"{name}:other"):
            write_line(lock.token == token, group.joined and group.token == member)
        write_line(len(group.members()))
    group.leave()


@pytest.mark.every_day_on("postgresql", "zookeeper")
@pytest.mark.parametrize("kind", SHARED)
def test_the_end_of_a_child_that_has_used_nothing_ends_nothing_of_its_parent(
    child, kind, backend_settings, settings, name, way
):
    settings.DISTLOCK = backend_settings(kind)
    assert child(end_a_child, name, way).finish() == ["0", "True True", "1"]
