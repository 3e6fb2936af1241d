"""Requests and replies on one connection that also kazoo uses."""

import socket
import struct

import pytest
from kazoo.exceptions import APIError, ConnectionLoss, NoNodeError

from distlock.backends.zookeeper import wire as module
from distlock.backends.zookeeper.requests import Delete, GetChildren
from distlock.backends.zookeeper.wire import Wire

FIRST = 2**30 + 1


class Peer:
    """The server's end of a wire."""

    def __init__(self, buffer=None):
        ours, self.socket = socket.socketpair()
        if buffer:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        ours.setblocking(False)
        self.woken = 0
        self.events = []
        self.wire = Wire(ours, self._wake, lambda type, path: self.events.append((type, path)))

    def _wake(self):
        self.woken += 1

    def says(self, data):
        self.socket.sendall(data)

    def hears(self):
        return self.socket.recv(1_000_000)

    def close(self):
        self.socket.close()
        self.wire.close()


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    peer.close()


class Interrupted:
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


GREETING = frame(struct.pack("!iiq", 0, 4000, 0xABC) + struct.pack("!i", 16) + bytes(16))


def test_the_greeting_is_kazoos_and_tells_how_long_sessions_last(peer):
    peer.says(GREETING)
    assert peer.wire.recv(4) + peer.wire.recv(1000) == GREETING
    assert peer.wire.session_timeout == 4.0


def test_before_it_is_open_no_request_is_sent(peer):
    (lost,) = peer.wire.submit([GetChildren("/a", None)])
    assert isinstance(lost.error, ConnectionLoss)
    assert lost.lost


def test_requests_that_are_sent_together_are_answered_in_order(peer):
    peer.wire.open()
    replies = peer.wire.submit([GetChildren("/a", None), Delete("/b", -1)])
    heard = peer.hears()
    assert struct.unpack_from("!ii", heard, 4) == (FIRST, GetChildren.type)
    peer.says(reply(FIRST, names("x", "y")) + reply(FIRST + 1, error=-101))
    peer.wire.read()
    assert replies[0].value == ["x", "y"]
    assert isinstance(replies[1].error, NoNodeError)
    assert peer.wire.last_zxid == 7


def test_a_reply_may_come_in_pieces(peer):
    peer.wire.open()
    (answer,) = peer.wire.submit([GetChildren("/a", None)])
    data = reply(FIRST, names("x"))
    for at in range(len(data)):
        assert not answer.done
        peer.says(data[at : at + 1])
        peer.wire.read()
    assert answer.value == ["x"]


def test_kazoo_gets_what_is_its_own_and_nothing_else(peer):
    peer.wire.open()
    (answer,) = peer.wire.submit([GetChildren("/a", None)])
    ping = reply(-2)
    peer.says(ping + reply(FIRST, names()) + ping)
    peer.wire.read()
    assert answer.value == []
    assert peer.wire.pending()
    assert peer.wire.recv(1000) == ping + ping
    assert not peer.wire.pending()


def test_events_of_watches_are_told_by_path(peer):
    peer.wire.open()
    peer.says(event(2, "/a/b") + event(3, "/c"))
    peer.wire.read()
    assert peer.events == [(2, "/a/b"), (3, "/c")]
    assert not peer.wire.pending()


def test_an_error_that_kazoo_does_not_know_is_an_error(peer):
    peer.wire.open()
    (answer,) = peer.wire.submit([Delete("/a", -1)])
    peer.says(reply(FIRST, error=-9999))
    peer.wire.read()
    assert isinstance(answer.error, APIError)
    assert "-9999" in str(answer.error)


def test_the_end_of_the_connection_is_for_kazoo_to_see_and_loses_what_was_asked(peer):
    peer.wire.open()
    (answer,) = peer.wire.submit([GetChildren("/a", None)])
    peer.socket.shutdown(socket.SHUT_RDWR)
    peer.wire.read()
    assert peer.wire.pending()
    assert peer.wire.recv(4) == b""
    assert not answer.done
    peer.wire.close()
    assert answer.lost
    assert peer.wire.submit([Delete("/a", -1)])[0].lost


def test_what_does_not_go_at_once_is_sent_when_there_is_room():
    peer = Peer(buffer=4096)
    peer.wire.open()
    requests = [GetChildren("/" + "x" * 500, None) for _ in range(200)]
    replies = peer.wire.submit(requests)
    assert peer.woken == 1
    heard = peer.hears()
    while not peer.wire.flush():
        heard += peer.hears()
    expected = 200 * (4 + 8 + len(requests[0].serialize()))
    while len(heard) < expected:
        heard += peer.hears()
    assert len(heard) == expected
    for number, _ in enumerate(replies):
        peer.says(reply(FIRST + number, names(str(number))))
        peer.wire.read()
    assert [each.value for each in replies] == [[str(number)] for number in range(200)]
    peer.close()


def test_an_answer_to_something_else_breaks_the_connection(peer):
    peer.wire.open()
    peer.wire.submit([Delete("/a", -1)])
    peer.says(reply(FIRST + 5))
    with pytest.raises(OSError, match="instead of"):
        peer.wire.read()


def test_numbers_of_requests_begin_anew_and_never_meet_kazoos(peer, monkeypatch):
    peer.wire.open()
    monkeypatch.setattr(peer.wire, "_number", module._LAST - 1)
    replies = peer.wire.submit([Delete("/a", -1), Delete("/b", -1)])
    peer.says(reply(module._LAST) + reply(module._FIRST))
    peer.wire.read()
    assert all(each.done for each in replies)
    assert not any(each.error for each in replies)


def test_a_callback_that_fails_disturbs_nobody(peer, caplog):
    peer.wire.open()
    first, second = peer.wire.submit([Delete("/a", -1), Delete("/b", -1)])
    first.then(lambda _: 1 / 0)
    peer.says(reply(FIRST) + reply(FIRST + 1))
    peer.wire.read()
    assert second.value is True
    assert "ZeroDivisionError" in caplog.text


def test_what_was_sent_when_its_sender_was_interrupted_is_not_sent_again(peer):
    """The server would do it twice, and answer twice."""
    peer.wire.open()
    undisturbed, peer.wire._socket = peer.wire._socket, Interrupted(peer.wire._socket)
    with pytest.raises(KeyboardInterrupt):
        peer.wire.submit([Delete("/a", -1)])
    peer.wire._socket = undisturbed
    sent = peer.hears()
    peer.wire.flush()
    (after,) = peer.wire.submit([Delete("/b", -1)])
    assert sent.count(b"/a") == 1
    assert peer.hears() == b""  # the connection is over, and the session goes on in the next one
    peer.wire.read()
    assert peer.wire.pending()
    assert after.error is None  # nobody tries again before there is another connection
    peer.wire.close()
    assert isinstance(after.error, ConnectionLoss)
