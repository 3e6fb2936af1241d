"""Requests and replies on one connection that also kazoo uses."""

import socket
import struct

import pytest
from kazoo.exceptions import APIError, ConnectionLoss, NoNodeError

from distlock.backends.zookeeper import transport as module
from distlock.backends.zookeeper.requests import Delete, GetChildren
from distlock.backends.zookeeper.transport import Transport

FIRST = 2**30 + 1


class Peer:
    """The server's end of a connection."""

    def __init__(self, buffer=None):
        ours, self.socket = socket.socketpair()
        if buffer:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        ours.setblocking(False)
        self.ours = Interruptible(ours)
        self.woken = 0
        self.events = []
        self.answered = []
        self.transport = Transport(
            self.ours,
            self._wake,
            lambda type, path: self.events.append((type, path)),
            self.answered.append,
        )

    def _wake(self):
        self.woken += 1

    def says(self, data):
        self.socket.sendall(data)

    def hears(self):
        return self.socket.recv(1_000_000)

    def close(self):
        self.socket.close()
        self.transport.close()


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    peer.close()


class Interruptible:
    """A socket whose user can be interrupted by Ctrl-C as soon as something was sent."""

    def __init__(self, socket):
        self._socket = socket
        self.interrupts = False

    def send(self, data):
        sent = self._socket.send(data)
        if self.interrupts:
            raise KeyboardInterrupt
        return sent

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


GREETING = frame(struct.pack("!iiq", 0, 4000, 0xABC) + struct.pack("!i", 16) + bytes(16))


def test_the_greeting_is_kazoos_and_tells_how_long_sessions_last(peer):
    peer.says(GREETING)
    assert peer.transport.recv(4) + peer.transport.recv(1000) == GREETING
    assert peer.transport.session_timeout == 4.0


def test_before_it_is_open_no_request_is_sent(peer):
    (lost,) = peer.transport.submit([GetChildren("/a", None)])
    assert isinstance(lost.error, ConnectionLoss)
    assert lost.lost


def test_requests_that_are_sent_together_are_answered_in_order(peer):
    peer.transport.open()
    replies = peer.transport.submit([GetChildren("/a", None), Delete("/b", -1)])
    heard = peer.hears()
    assert struct.unpack_from("!ii", heard, 4) == (FIRST, GetChildren.type)
    peer.says(reply(FIRST, names("x", "y")) + reply(FIRST + 1, error=-101))
    peer.transport.read()
    assert replies[0].value == ["x", "y"]
    assert isinstance(replies[1].error, NoNodeError)
    assert peer.transport.last_zxid == 7


def test_a_reply_may_come_in_pieces(peer):
    peer.transport.open()
    (answer,) = peer.transport.submit([GetChildren("/a", None)])
    data = reply(FIRST, names("x"))
    for at in range(len(data)):
        assert not answer.done
        peer.says(data[at : at + 1])
        peer.transport.read()
    assert answer.value == ["x"]


def test_kazoo_gets_what_is_its_own_and_nothing_else(peer):
    peer.transport.open()
    (answer,) = peer.transport.submit([GetChildren("/a", None)])
    ping = reply(-2)
    assert peer.answered == []
    peer.says(ping + reply(FIRST, names()) + ping)
    peer.transport.read()
    assert answer.value == []
    assert peer.transport.pending()
    assert peer.transport.recv(1000) == ping + ping
    assert len(peer.answered) == 3
    assert not peer.transport.pending()


def test_events_of_watches_are_told_by_path(peer):
    peer.transport.open()
    peer.says(event(2, "/a/b") + event(3, "/c"))
    peer.transport.read()
    assert peer.events == [(2, "/a/b"), (3, "/c")]
    assert not peer.transport.pending()


def test_an_error_that_kazoo_does_not_know_is_an_error(peer):
    peer.transport.open()
    (answer,) = peer.transport.submit([Delete("/a", -1)])
    peer.says(reply(FIRST, error=-9999))
    peer.transport.read()
    assert isinstance(answer.error, APIError)
    assert "-9999" in str(answer.error)


def test_the_end_of_the_connection_is_for_kazoo_to_see_and_loses_what_was_asked(peer):
    peer.transport.open()
    (answer,) = peer.transport.submit([GetChildren("/a", None)])
    peer.socket.shutdown(socket.SHUT_RDWR)
    peer.transport.read()
    assert peer.transport.pending()
    assert peer.transport.recv(4) == b""
    assert not answer.done
    peer.transport.close()
    assert answer.lost
    assert peer.transport.submit([Delete("/a", -1)])[0].lost


def test_what_does_not_go_at_once_is_sent_when_there_is_room():
    peer = Peer(buffer=4096)
    peer.transport.open()
    requests = [GetChildren("/" + "x" * 500, None) for _ in range(200)]
    replies = peer.transport.submit(requests)
    assert peer.woken == 1
    heard = peer.hears()
    while not peer.transport.flush():
        heard += peer.hears()
    expected = 200 * (4 + 8 + len(requests[0].serialize()))
    while len(heard) < expected:
        heard += peer.hears()
    assert len(heard) == expected
    for number, _ in enumerate(replies):
        peer.says(reply(FIRST + number, names(str(number))))
        peer.transport.read()
    assert [each.value for each in replies] == [[str(number)] for number in range(200)]
    peer.close()


def test_an_answer_to_something_else_breaks_the_connection(peer):
    peer.transport.open()
    peer.transport.submit([Delete("/a", -1)])
    peer.says(reply(FIRST + 5))
    with pytest.raises(OSError, match="instead of"):
        peer.transport.read()


def test_numbers_of_requests_begin_anew_and_never_meet_kazoos(peer, monkeypatch):
    peer.transport.open()
    monkeypatch.setattr(peer.transport, "_number", module._LAST - 1)
    replies = peer.transport.submit([Delete("/a", -1), Delete("/b", -1)])
    peer.says(reply(module._LAST) + reply(module._FIRST))
    peer.transport.read()
    assert all(each.done for each in replies)
    assert not any(each.error for each in replies)


def test_a_callback_that_fails_disturbs_nobody(peer, caplog):
    peer.transport.open()
    first, second = peer.transport.submit([Delete("/a", -1), Delete("/b", -1)])
    first.then(lambda _: 1 / 0)
    peer.says(reply(FIRST) + reply(FIRST + 1))
    peer.transport.read()
    assert second.value is True
    assert "ZeroDivisionError" in caplog.text


def test_what_was_sent_when_its_sender_was_interrupted_is_not_sent_again(peer):
    """The server would do it twice, and answer twice."""
    peer.transport.open()
    peer.ours.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        peer.transport.submit([Delete("/a", -1)])
    peer.ours.interrupts = False
    sent = peer.hears()
    peer.transport.flush()
    (after,) = peer.transport.submit([Delete("/b", -1)])
    assert sent.count(b"/a") == 1
    assert peer.hears() == b""  # the connection is over, and the session goes on in the next one
    peer.transport.read()
    assert peer.transport.pending()
    assert after.error is None  # nobody tries again before there is another connection
    peer.transport.close()
    assert isinstance(after.error, ConnectionLoss)
