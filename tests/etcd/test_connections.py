"""The connections of a process: few for many threads, and renewals have some of their own."""

import itertools
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from distlock import Lock, LockUnavailable, locks
from distlock.backends import etcd as package
from distlock.backends.etcd import connections
from distlock.backends.etcd.messages import get
from distlock.concurrency import pending
from distlock.concurrency.clock import clock
from distlock.types.lease import Claim
from distlock.types.owners import current_owner
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.forks import forked
from tests.contract.watch import eventually, passed
from tests.core.interrupting import interrupted

THREADS = 200
#: with the stream of the watches
MOST = 16
#: for what is no renewal
USERS = connections._MOST


@pytest.fixture
def loans(monkeypatch):
    """What lends connections, for renewals and for all else: how many are in use or waited for."""
    made = []

    class Noted(connections.Loans):
        def __init__(self, most):
            super().__init__(most)
            made.append(self)

    monkeypatch.setattr(connections, "Loans", Noted)
    return made


def sockets_to(port):
    """Return how many sockets of this process are connected to a port."""
    found = 0
    with open("/proc/self/net/tcp") as file:
        lines = [line.split() for line in file][1:]
    far = {line[9] for line in lines if int(line[2].partition(":")[2], 16) == port}
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it has been closed
            found += os.readlink(f"/proc/self/fd/{number}")[8:-1] in far
    return found


@contextmanager
def counted(port):
    """Yield a list of how many sockets are connected to a port, at one moment after the other."""
    counts, over = [], threading.Event()

    def count():
        while not over.wait(0.01):
            counts.append(sockets_to(port))

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield counts
    finally:
        over.set()
        thread.join()


def all_do(call):
    """Return what ``call(number)`` returns on each of so many threads."""
    barrier = threading.Barrier(THREADS)

    def begin(number):
        barrier.wait(PATIENCE)
        return call(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return [*threads.map(begin, range(THREADS))]


@pytest.fixture
def proxy(proxied):
    return proxied("etcd")


@pytest.fixture
def kept_busy(proxy, configure):
    """``with kept_busy() as delays``: slow requests have all connections but for renewals."""
    client = locks[configure()].client

    @contextmanager
    def keep():
        delays = []
        with ThreadPoolExecutor(USERS) as threads:
            try:
                for _ in range(USERS):
                    delays.append(proxy.delay(b"lease/grant"))
                    threads.submit(client.grant, 20)
                    assert delays[-1].kept_back.wait(PATIENCE)
                yield delays
            finally:
                for delay in delays:
                    delay.end()

    return keep


def test_many_threads_share_a_few_connections(using, etcd, name):
    def cycle(number):
        for _ in range(5):
            with Lock(f"{name}:{number}", using=using, timeout=PATIENCE):
                pass
        return True

    with counted(etcd.port) as counts:
        assert all(all_do(cycle))
    assert 1 < max(counts) <= MOST


def cycle_in_greenlets(name, port):
    import gevent

    counts = []

    def cycle(number):
        for _ in range(5):
            with Lock(f"{name}:{number}"):
                counts.append(sockets_to(port))

    gevent.joinall([gevent.spawn(cycle, number) for number in range(50)], raise_error=True)
    write_line(len(counts), max(counts) <= MOST)


@pytest.mark.slow
def test_many_greenlets_share_a_few_connections(using, etcd, child, name):
    greenlets = child(cycle_in_greenlets, name, etcd.port, gevent=True)
    assert greenlets.line() == "250 True"
    greenlets.finish()


def test_who_waits_for_a_lock_keeps_no_connection(using, etcd, name):
    turns = []

    def take(number):
        with Lock(f"{name}:{number % 100}", using=using, timeout=2 * PATIENCE):
            turns.append(number)

    held = [Lock(f"{name}:{number}", using="other") for number in range(100)]
    for lock in held:
        lock.acquire()
    with counted(etcd.port) as counts, ThreadPoolExecutor(1) as one:
        taking = one.submit(all_do, take)
        for lock in held:
            eventually(lambda name=lock.name: locks["other"].inspect(name).waiters)
        assert take_and_leave(f"{name}:other")
        for lock in held:
            lock.release()
        taking.result(3 * PATIENCE)
    assert sorted(turns) == [*range(THREADS)]
    assert max(counts) <= MOST + 2  # and those of the other client


def test_a_hold_is_renewed_while_all_connections_are_kept_busy(kept_busy, name):
    with Lock(name, lease=2) as lock:
        with kept_busy():
            passed(4)
            assert lock.held
        lock.verify()


def test_no_renewal_waits_for_other_requests(kept_busy, name):
    backend = locks["default"]
    own, others = (Claim(f"{name}:{who}", current_owner(), 20.0) for who in ("own", "others"))
    leases = [backend.try_acquire(own), locks["other"].try_acquire(others)]
    session = backend.store.open_session(20)
    with kept_busy():
        soon = clock() + PATIENCE / 3
        assert backend.store.renew([session.id], (), soon).alive == {session.id}
        assert all(backend.renew(leases, soon).values())  # one of another process, too
        assert all(backend.renew([lease.lasting(60) for lease in leases], soon).values())


def test_idle_connections_that_the_network_has_forgotten_cost_no_renewal(kept_busy, proxy, name):
    backend = locks["default"]
    lease = backend.try_acquire(Claim(name, current_owner(), 20.0))
    with kept_busy():
        pass  # many are idle afterwards
    proxy.forget_open()
    assert backend.renew([lease], clock() + 4) == {lease.nonce: True}


def test_a_connection_that_was_idle_for_long_is_not_used_again(proxy, configure, name, monkeypatch):
    client = locks[configure()].client
    client.do([get(name)])
    proxy.forget_open()
    monkeypatch.setattr(connections, "_LONGEST_IDLE", 0.0)
    client.do([get(name)], clock() + PATIENCE)


def test_an_address_of_a_host_that_does_not_answer_leaves_time_for_the_next_one(
    proxied, configure, name, monkeypatch
):
    silent, slow = proxied("etcd"), proxied("etcd")
    client = locks[configure({"default": f"http://two-addresses:{slow.port}"})].client
    look_up = socket.getaddrinfo

    def both(host, port, *args, **options):
        if host != "two-addresses":
            return look_up(host, port, *args, **options)
        ports = silent.port, slow.port
        return [found for one in ports for found in look_up(slow.host, one, *args, **options)]

    silent.ignore()
    slow.slow_down(replies=0.1)
    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert client.do([get(name)], clock() + 2)
    silent.heal()


def test_no_connection_in_time_is_told_as_such(kept_busy, name):
    match = "connections are waiting"
    with kept_busy(), pytest.raises(LockUnavailable, match=match) as caught:
        locks["default"].client.do([get(name)], clock() + 0.2)
    assert caught.value.maybe_applied is False
    with Lock(name, timeout=PATIENCE) as lock:
        assert lock.held


def test_requests_are_sent_in_the_order_of_coming_and_those_that_keep_places_first(
    loans, kept_busy, name
):
    order = []

    def ask(number):
        client.do([get(name)])
        order.append(number)

    def keep(lease):
        client.keep_alive([lease])
        order.append("kept")

    with kept_busy() as delays, ThreadPoolExecutor(9) as threads:
        client = locks["default"].client
        for number in range(8):
            threads.submit(ask, number)
            eventually(lambda waiting=number + 1: sum(one.waiting for one in loans) == waiting)
        threads.submit(keep, 1)
        eventually(lambda: sum(one.waiting for one in loans) == 9)
        delays[0].end()
        eventually(lambda: len(order) == 9)
        assert order == ["kept", *range(8)]


def fail_on_each_thread(name, port):
    def fail(number):
        began = time.monotonic()
        with pytest.raises(LockUnavailable):
            Lock(f"{name}:{number}").acquire(timeout=1)
        return time.monotonic() - began

    take_and_leave(name)
    write_line("ready")
    read_line()
    with counted(port) as counts:
        longest = max(all_do(fail))
    write_line(longest, max(counts))
    read_line()
    write_line(take_and_leave(name))


def test_a_server_that_stands_still_keeps_nobody_longer_than_his_time_limit(
    using, etcd, child, name
):
    threads = child(fail_on_each_thread, name, etcd.port)
    assert threads.line() == "ready"
    etcd.pause()
    try:
        threads.tell("begin")
        longest, most = map(float, threads.line().split())
    finally:
        etcd.resume()
    assert longest < 3  # and not 18, one after the other
    assert most <= MOST
    threads.tell("go on")
    assert threads.line() == "True"
    threads.finish()


def test_a_connection_that_the_server_has_closed_is_replaced(proxied, configure, name):
    proxy = proxied("etcd")
    client = locks[configure()].client
    for _ in range(3):
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(client.do, [[get(name)]] * 8))
        proxy.cut()
        # No repeatable request: it fails if it is sent on a connection that is dead.
        assert client.txn([], [get(name)], repeatable=False)


def take_and_leave(name):
    with Lock(name, timeout=PATIENCE) as lock:
        return lock.held


def test_the_child_of_a_fork_has_connections_of_its_own(kept_busy, name):
    with kept_busy():
        waiting = threading.Thread(target=take_and_leave, args=(f"{name}:waiting",))
        waiting.start()
        assert forked(take_and_leave, name) is True
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


CODE = (str(Path(package.__file__).parent), pending.__file__)


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
def test_an_interrupt_leaves_all_connections_to_the_others(loans, monkeypatch, configure, waits):
    monkeypatch.setattr(connections, "_MOST", 1)
    client = locks[configure()].client
    client.do([get("/")])
    busy = loans[1]

    def ask():
        if waits:
            other = pending.Loan()
            assert busy.begin(other, clock())
            threading.Timer(0.005, busy.end, (other,)).start()
        client.do([get("/")], clock() + PATIENCE)

    for moment in itertools.count(1):
        if not interrupted(ask, moment, code=CODE):
            assert moment > 20, "the interrupts did not reach the code"
            return
        with ThreadPoolExecutor(1) as another:
            assert another.submit(client.do, [get("/")], clock() + 10).result(PATIENCE)
        eventually(lambda: busy.busy == busy.waiting == 0)
