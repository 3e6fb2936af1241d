"""Requests and replies on a connection that kazoo makes, with a server that the test plays."""

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from kazoo.exceptions import APIError, NoNodeError
from kazoo.protocol.serialization import Delete, GetChildren, GetData, SetData

from distlock.backends.zookeeper import ZooKeeperBackend, connection
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually

PING, CLOSE = 11, -11


class Peer:
    """A server with one client, which does nothing but what the test makes it do."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE)
        host, port = self._listening.getsockname()
        retry = {"delay": 0.001, "max_jitter": 0}
        # The client is to be patient: it must not connect anew while the test stands still.
        options = {"session_timeout": 60, "timeout": 2 * PATIENCE, "retry": retry}
        params = {"LOCATION": f"{host}:{port}", "OPTIONS": options}
        self._backend = ZooKeeperBackend("peer", params)
        self.client = self._backend.client
        self.socket = None

    def connect(self, session_timeout=60):
        """Take the client's next connection, and answer for the first time."""
        self.accept()
        self.greet(session_timeout)
        eventually(lambda: self.client.connected)

    def accept(self):
        """Take the client's next connection, and hear what it says first."""
        if self.socket is not None:
            self.socket.close()
        self.socket, _ = self._listening.accept()
        self.socket.settimeout(PATIENCE)
        self.frame()

    def greet(self, session_timeout=60):
        """Begin a session, or go on with it."""
        password = struct.pack("!i", 16) + bytes(16)
        self.says(frame(struct.pack("!iiq", 0, int(session_timeout * 1000), 0xABC) + password))

    def says(self, data):
        self.socket.sendall(data)

    def frame(self):
        """Return the next message of the client, without its length."""
        return self._read(int.from_bytes(self._read(4)))

    def hears(self):
        """Return number and type of the client's next request."""
        return struct.unpack_from("!ii", self.frame())

    def _read(self, size):
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, "the client has closed the connection"
            data += piece
        return data

    def close(self):
        self.socket.close()
        self._listening.close()
        self._backend.close()


@pytest.fixture
def peer():
    peer = Peer()
    peer.connect()
    yield peer
    peer.close()


@pytest.fixture
def client(peer):
    return peer.client


class Interruptible:
    """A socket whose user is interrupted by Ctrl-C as soon as something was sent."""

    def __init__(self, socket):
        self._socket = socket

    def send(self, data):
        self._socket.send(data)
        raise KeyboardInterrupt

    def __getattr__(self, name):
        return getattr(self._socket, name)


def frame(body):
    return struct.pack("!i", len(body)) + body


def reply(number, body=b"", error=0, zxid=7):
    return frame(struct.pack("!iqi", number, zxid, error) + body)


def names(*children):
    body = struct.pack("!i", len(children))
    for child in children:
        body += struct.pack("!i", len(child)) + child.encode()
    return body


def event(kind, path):
    body = struct.pack("!iii", kind, 3, len(path)) + path.encode()
    return reply(-1, body, zxid=-1)


def answered(request):
    return request.wait(PATIENCE)


def test_the_server_says_how_long_the_session_lasts(peer, client):
    assert client.session.timeout == 60.0


def test_without_a_connection_a_request_is_lost_at_once(peer, client):
    peer.socket.close()
    eventually(lambda: not client.connected)
    assert client.send(GetChildren("/a", None)).lost


def test_requests_that_are_sent_together_are_answered_in_order(peer, client):
    replies = client.send_all([GetChildren("/a", None), Delete("/b", -1)])
    assert peer.hears() == (1, GetChildren.type)
    assert peer.hears() == (2, Delete.type)
    peer.says(reply(1, names("x", "y")) + reply(2, error=-101))
    assert answered(replies[1])
    assert replies[0].value == ["x", "y"]
    assert isinstance(replies[1].error, NoNodeError)
    assert client.kazoo.last_zxid == 7


def test_a_reply_may_come_in_pieces(peer, client):
    answer = client.send(GetChildren("/a", None))
    data = reply(1, names("x"))
    for at in range(len(data)):
        assert not answer.done
        peer.says(data[at : at + 1])
    assert answered(answer)
    assert answer.value == ["x"]


def test_the_answer_to_a_ping_shows_that_the_session_lives(peer, client):
    def counts_from_a_ping(session_timeout):
        """Answer a ping; False if the client was told too late, and has hung up."""
        peer.accept()
        peer.greet(session_timeout)
        assert peer.hears() == (-2, PING)
        liveness = client.connection.liveness
        begun_at = liveness.counted_from(clock())
        with suppress(OSError):
            peer.says(reply(-2))

        def counts():
            return liveness.counted_from(clock()) > begun_at

        eventually(lambda: counts() or not client.connected)
        return counts()

    peer.socket.close()
    # It pings several times in a session, and waits no longer for the answer than for the next one.
    assert any(map(counts_from_a_ping, (1, 4, 16)))


def test_a_watch_ends_with_the_event_of_its_path(peer, client):
    gone, changed, other = [client.watches.add(path) for path in ("/a/b", "/c", "/d")]
    for number in (1, 2, 3):
        assert peer.hears() == (number, GetData.type)
    peer.says(event(2, "/a/b") + event(3, "/c"))
    assert answered(gone) and answered(changed)
    assert isinstance(gone.error, NoNodeError)
    assert changed.error is None
    assert not other.done


def test_an_error_that_kazoo_does_not_know_is_an_error(peer, client):
    answer = client.send(Delete("/a", -1))
    peer.says(reply(1, error=-9999))
    assert answered(answer)
    assert isinstance(answer.error, APIError)
    assert "-9999" in str(answer.error)


def test_the_end_of_the_connection_loses_what_was_asked_and_ends_the_watches(peer, client):
    watch = client.watches.add("/b")
    answer = client.send(GetChildren("/a", None))
    peer.socket.shutdown(socket.SHUT_RDWR)
    assert answered(answer) and answered(watch)
    assert answer.lost and watch.lost
    peer.connect()
    assert not client.session.over


def test_what_does_not_go_at_once_is_sent_when_there_is_room(peer, client):
    count, size = 100, 200_000
    replies = client.send_all([SetData("/a", bytes(size), -1) for _ in range(count)])
    later = client.send(Delete("/b", -1))
    for number in range(1, count + 1):
        message = peer.frame()
        assert struct.unpack_from("!ii", message) == (number, SetData.type)
        assert len(message) > size
        peer.says(reply(number, error=-101))
    assert peer.hears() == (count + 1, Delete.type)
    peer.says(reply(count + 1))
    assert answered(later)
    assert all(isinstance(each.error, NoNodeError) for each in replies)


def test_an_answer_to_something_else_breaks_the_connection(peer, client):
    answer = client.send(Delete("/a", -1))
    peer.says(reply(5))
    assert answered(answer)
    assert answer.lost
    peer.connect()
    answer = client.send(Delete("/a", -1))
    peer.says(reply(1))
    assert answered(answer)
    assert answer.value is True


def test_numbers_of_requests_begin_anew_after_the_greatest(peer, client, monkeypatch):
    monkeypatch.setattr(client.connection, "_number", 2**31 - 2)
    replies = client.send_all([Delete("/a", -1), Delete("/b", -1)])
    peer.says(reply(2**31 - 1) + reply(1))
    assert answered(replies[1])
    assert [each.error for each in replies] == [None, None]


def test_a_callback_that_fails_disturbs_nobody(peer, client, caplog):
    first, second = client.send_all([Delete("/a", -1), Delete("/b", -1)])
    first.then(lambda _: 1 / 0)
    peer.says(reply(1) + reply(2))
    assert answered(second)
    assert second.value is True
    assert "ZeroDivisionError" in caplog.text


def test_what_was_sent_when_its_sender_was_interrupted_is_not_sent_again(peer, client):
    """The server would do it twice, and answer twice."""
    client.connection._socket = Interruptible(client.connection._socket)  # of this connection only
    with pytest.raises(KeyboardInterrupt):
        client.send(Delete("/a", -1))
    after = client.send(Delete("/b", -1))  # the session goes on in the next connection
    assert peer.hears() == (1, Delete.type)
    assert peer.socket.recv(1) == b""
    assert answered(after)
    assert after.lost
    peer.connect()
    assert not client.session.over


def test_a_client_that_is_closed_ends_its_session_in_good_order(peer, client):
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(client.close)
        assert peer.hears() == (1, CLOSE)
        peer.says(reply(1))
        closing.result(PATIENCE)
    eventually(lambda: client.dead)
    assert client.session.over


def test_a_client_that_is_closed_while_it_connects_ends_the_session_that_begins(
    peer, client, monkeypatch
):
    monkeypatch.setattr(connection, "_CLOSE_LIMIT", PATIENCE)
    peer.socket.close()
    eventually(lambda: not client.connected)
    peer.accept()
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(client.close)
        eventually(client.kazoo._stopped.is_set)
        peer.greet()
        assert peer.hears() == (1, CLOSE)
        peer.says(reply(1))
        closing.result(PATIENCE)
    eventually(lambda: client.dead)
