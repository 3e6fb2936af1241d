"""Members that do not answer, refuse, or are no etcd; and answers that get lost."""

import itertools
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from distlock import Lock, LockUnavailable, locks
from distlock.concurrency.clock import clock
from distlock.recipes import Semaphore
from distlock.types.lease import Claim, State
from distlock.types.owners import current_owner
from tests.contract.actors import answered
from tests.contract.watch import Once, eventually, passed
from tests.etcd.conftest import TIMEOUT

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def mute():
    """The address of one that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def answering():
    """``answering(404, "text")``: the address of one that answers to all that it is asked."""
    servers = []

    def make(status, text):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_another_member_is_asked_if_one_cannot_be_reached(configure, etcd, name):
    configure({"default": [NOWHERE, etcd.url]})
    with Lock(name) as lock:
        lock.verify()


def test_another_member_is_asked_if_one_does_not_answer(configure, etcd, mute, name):
    configure({"default": [mute, etcd.url]}, timeout=TIMEOUT)
    lock = Lock(name)
    assert answered(lock.acquire)
    answered(lock.verify)
    with suppress(LockUnavailable):  # it is freed later
        lock.release()
    eventually(lambda: Lock(name, using="other").info().state is State.FREE)
    names = (f"{name}:{number}" for number in itertools.count())

    def take():
        lock = Lock(next(names))
        return lock.acquire(timeout=0.05) and lock

    lock = answered(take)  # it is asked first from now on
    answered(lock.verify)
    with suppress(LockUnavailable):
        lock.release()


@pytest.mark.parametrize("status", [500, 502, 503])
def test_another_member_is_asked_if_one_answers_with_an_error(
    configure, etcd, answering, name, status
):
    configure({"default": [answering(status, "no upstream"), etcd.url]})
    with Lock(name) as lock:
        lock.verify()


def test_nobody_answers_within_the_limit(configure, mute, name):
    configure({"default": [mute, mute.replace("127.0.0.1", "localhost")]}, timeout=TIMEOUT)
    before = clock()
    with pytest.raises(
        LockUnavailable, match=r"DISTLOCK\['default'\]: etcd at .* does not"
    ) as caught:
        Lock(name, on_busy="raise").acquire()
    assert clock() < before + 5 * TIMEOUT
    assert caught.value.maybe_applied


def test_nobody_can_be_reached(configure, name):
    configure({"default": NOWHERE})
    with pytest.raises(
        LockUnavailable, match=r"DISTLOCK\['default'\].* cannot be reached"
    ) as caught:
        Lock(name).acquire()
    assert not caught.value.maybe_applied


@pytest.mark.parametrize(
    ("status", "text", "complaint"),
    [
        (404, "404 page not found", "does not know the path /v3/: etcd 3.4 or newer is needed"),
        (200, "<html>welcome</html>", "does not answer like etcd"),
        (200, "", "does not answer like etcd"),
        (403, "<html>keep out</html>", "answers Forbidden: <html>keep out</html>"),
    ],
)
def test_what_is_no_etcd_is_told_by_alias(configure, answering, name, status, text, complaint):
    configure({"default": answering(status, text)}, timeout=0.5)

    def is_told():
        with pytest.raises(LockUnavailable) as caught:
            Lock(name).acquire()
        assert str(caught.value).startswith("DISTLOCK['default']: etcd at http://127.0.0.1:")
        return complaint in str(caught.value)

    eventually(is_told)  # the answer may have come too late


@pytest.mark.slow
@pytest.mark.parametrize("make", [Lock, lambda name, **how: Semaphore(name, 2, **how)])
def test_a_connection_that_falls_silent_costs_no_lease(configure, proxied, name, make):
    """One address leads to the cluster, which is well."""
    proxy, lost = proxied("etcd"), Once()
    configure(entry={"LEASE": 8}, timeout=10)
    with make(name, on_lost=lost) as lock:
        forgotten = proxy.forget(b"lease/keepalive")
        passed(8.5)
        assert forgotten.is_set()
        lock.verify()
        assert not lost.calls


# Answers that get lost: the server has carried out the request


@pytest.mark.parametrize("request_path", [b"lease/grant", b"kv/txn"])
def test_a_lost_answer_while_taking_is_no_hold_too_many(
    configure, proxied, etcd, name, request_path
):
    proxy = proxied("etcd")
    configure()
    lost = proxy.lose_reply(to=request_path)
    with Lock(name) as lock:
        assert lost.is_set()
        (info,) = locks["other"].list(name)
        assert info.token == lock.token
        lock.verify()
    assert Lock(name, using="other").info().state is State.FREE
    assert not etcd.keys(f"/distlock/locks/{name}/")


def test_a_lost_answer_while_freeing_is_no_loss(configure, proxied, name):
    proxy = proxied("etcd")
    configure()
    lock = Lock(name)
    lock.acquire()
    lost = proxy.lose_reply(to=b"kv/txn")
    lock.release()
    assert lost.is_set()
    assert Lock(name, using="other").acquire(blocking=False)


def test_a_lease_that_a_lost_request_has_named_is_not_used_again(
    configure, proxied, new_leases, name
):
    """The request may be carried out again, by a member that has it still."""
    proxy = proxied("etcd")
    configure()
    lost = proxy.lose_reply(to=b"kv/txn")
    with Lock(name):
        assert lost.is_set()
    assert not new_leases()


def test_a_late_request_holds_nothing(configure, proxied, new_leases, name):
    """It names a lease that has ended by then, so that the server refuses it."""
    proxy = proxied("etcd")
    backend = locks[configure()]
    claim = Claim(name, current_owner(), 30.0)
    delay = proxy.delay(b"kv/txn")

    def is_kept_back():
        with pytest.raises(LockUnavailable):
            backend.try_acquire(claim, clock() + 0.5)
        return delay.kept_back.is_set()

    eventually(is_kept_back)  # the time may have been over before
    assert new_leases()
    backend.cancel(claim)
    assert not new_leases()
    delay.end()
    assert Lock(name, using="other").acquire(blocking=False)


def test_the_answer_to_a_request_that_was_given_up_is_never_read_by_another(
    configure, proxied, name
):
    proxy = proxied("etcd")
    backend = locks[configure()]
    first = backend.inspect(f"{name}:1")
    delay = proxy.delay(b"kv/txn")

    def is_kept_back():
        with pytest.raises(LockUnavailable):
            backend.inspect(f"{name}:2", clock() + 0.3)
        return delay.kept_back.is_set()

    eventually(is_kept_back)  # the time may have been over before
    delay.end()
    with Lock(name, using="other") as lock:
        assert [backend.inspect(name).token for _ in range(3)] == [lock.token] * 3
    assert first.token is None
