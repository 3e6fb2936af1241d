"""HTTP connections to one member of a cluster."""

from __future__ import annotations

# Python imports this at the first look-up of a host. If an interrupt came just then, threads that
# wait for the import would fail, and each look-up after that: see search_function() there.
import encodings.idna  # noqa: F401
import json
import math
import os
import select
import socket
import ssl
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from distlock.backends.etcd.options import Endpoint
from distlock.concurrency import fork
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Loan, Loans

#: Connections that are in use at a time, at most: for renewals, which four threads make, and for
#: all other requests. With the stream of the watches these are 16.
_MOST_RENEWING, _MOST = 4, 11
#: Connections that are kept for the next request. They are less than those in use: if a network
#: has forgotten all of them, some requests still get a new one at once.
_MOST_IDLE = 8
#: Seconds after which a connection that nobody has used may be forgotten by a network.
_LONGEST_IDLE = 60.0
#: Seconds. A time limit of 0 would mean something else to a socket.
_SHORTEST_LIMIT = 0.001
_NUMERIC = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
#: A header for requests of several documents. Go's server drops what it has not read of a request
#: when the answer begins, unless the connection is to be closed after it; then it reads on.
SEVERAL = {"Connection": "close"}
#: Bytes of a line of a head, at most; and bytes that are read at once.
_LONGEST_LINE = _MOST_BYTES = 65536
#: Seconds until a server has to take what is sent on a stream.
_LONGEST_SEND = 5.0


class Unanswered(Exception):
    """There is no answer. ``sent``: the request may have been carried out."""

    def __init__(self, cause: BaseException, *, sent: bool) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.sent = sent


class Response:
    """The answer to a request."""

    def __init__(self, status: int, reason: str, body: bytes) -> None:
        self.status = status
        self.reason = reason
        self.text = body.decode(errors="replace")

    def json(self) -> Any:
        """Return the document; a list if there are several, one on a line, as from a stream.

        ValueError if it is none.
        """
        documents = [json.loads(line) for line in self.text.split("\n") if line.strip()]
        return documents[0] if len(documents) == 1 else documents


class _OpenSocket:
    """Has a socket, with which the child of a fork has nothing to do."""

    _socket: socket.socket

    def _keep(self) -> None:
        """Have a child of a fork call leave_to_parent(), from now on."""
        fork.current().connections.add(self)

    def leave_to_parent(self) -> None:
        """In the child of a fork: close the copy of the socket; the parent goes on with its own.

        A thread of the parent may have been reading. Then the file over the socket stays locked
        here forever, and close() would wait for that.
        """
        with suppress(OSError):
            os.close(socket.socket.detach(self._socket))


class _Connection(_OpenSocket):
    """A connection that one request after the other goes over.

    ``http.client`` would do, but takes twice the processor time, most of it for headers that nobody
    reads. See RFC 9112 for what is read here.
    """

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, deadline: float) -> None:
        self._socket = _connected(endpoint, tls, deadline)  # at once: __del__() closes it
        self._file = self._socket.makefile("rb")
        self._goes_on = True
        #: when the last answer came
        self.used_at = clock()
        self._keep()

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent: nothing has come that nobody has asked for."""
        if not self._goes_on:
            return False
        polling = select.poll()
        polling.register(self._socket, select.POLLIN)
        return not polling.poll(0)

    def close(self) -> None:
        """Close it in this process."""
        for each in ("_file", "_socket"):  # it may not have been made to the end
            with suppress(OSError, AttributeError):
                getattr(self, each).close()

    def __del__(self) -> None:
        self.close()  # an interrupt has left it to nobody

    def exchange(self, request: bytes, deadline: float) -> Response:
        """Send a request, and return the answer; ValueError or EOFError if it is no HTTP."""
        self._socket.settimeout(_rest(deadline))
        self._socket.sendall(request)
        self._socket.settimeout(_rest(deadline))
        version, status, reason = (self._line() + b"  ").split(b" ", 2)
        if not version.startswith(b"HTTP/1."):
            raise ValueError(f"not HTTP: {version!r}")
        length, is_chunked = None, False
        self._goes_on = version != b"HTTP/1.0"
        while line := self._line():
            name, _, value = line.partition(b":")
            name, value = name.lower(), value.strip().lower()
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                is_chunked = value.endswith(b"chunked")
            elif name == b"connection" and value == b"close":
                self._goes_on = False
        self._socket.settimeout(_rest(deadline))
        if is_chunked:
            body = b"".join(self._chunks())
        elif length is not None:
            body = self._read(length)
        else:
            self._goes_on = False
            body = self._file.read()
        self.used_at = clock()
        return Response(int(status), reason.strip().decode("latin-1"), body)

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._line().partition(b";")[0], 16):
            yield self._read(size)
            self._line()
        while self._line():  # trailers
            pass

    def _line(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise EOFError("the connection was closed")
        return line.rstrip(b"\r\n")

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError("the connection was closed")
        return data


class Connections:
    """The connections to one member; threads may share them.

    Each request has a connection to itself, and waits for one if too many are in use: see Loans.
    Unused ones are kept in a list, whose methods are atomic. A session of ``requests`` takes four
    times the processor time, has one time limit for all requests, sends the credentials of
    ``~/.netrc`` in place of a token, and cannot tell whether a request was sent.
    """

    #: How urgent a request is: usual; before all these; or it has connections for renewals alone.
    OTHER, PLACE, RENEWAL = range(3)

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        self.endpoint = endpoint
        self._tls = tls
        self._host = str(endpoint).partition("://")[2]
        self._renewals, self._others = Loans(_MOST_RENEWING), Loans(_MOST)
        self._idle: list[_Connection] = []
        self._trusted_since = -math.inf
        weakref.finalize(self, _close_all, self._idle)  # also at exit

    def close(self) -> None:
        """Close the connections that nobody uses."""
        _close_all(self._idle)

    def post(
        self, path: str, data: bytes, headers: Mapping[str, str], deadline: float, urgency: int
    ) -> Response:
        """Return the answer that comes by ``deadline``; Unanswered if none does.

        ``urgency``, of those above, is about the wait for a connection.
        """
        request = self._request(path, {"Content-Length": str(len(data)), **headers}) + data
        loans, loan = self._renewals if urgency == self.RENEWAL else self._others, Loan()
        connection: _Connection | None = None
        is_kept, began = False, clock()
        try:
            if not loans.begin(loan, deadline, first=urgency == self.PLACE):
                raise TimeoutError(f"all {loans.most} connections are waiting for answers")
            connection = self._take() or _Connection(self.endpoint, self._tls, deadline)
            response = connection.exchange(request, deadline)
            if len(self._idle) < _MOST_IDLE:
                is_kept = True
                self._idle.append(connection)
            return response
        except (OSError, EOFError, ValueError) as error:
            if connection is not None:
                # A network may have forgotten all connections that were idle for a while.
                self._trusted_since = max(self._trusted_since, began)
            raise Unanswered(error, sent=connection is not None) from error
        finally:
            if connection is not None and not is_kept:
                connection.close()  # also after an interrupt: the rest of the answer may still come
            loans.end(loan)

    def _request(self, path: str, headers: Mapping[str, str]) -> bytes:
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _take(self) -> _Connection | None:
        since = max(self._trusted_since, clock() - _LONGEST_IDLE)
        while self._idle:
            with suppress(IndexError):  # another thread was first
                connection = self._idle.pop()
                if connection.used_at >= since and connection.is_usable:
                    return connection
                connection.close()
        return None

    def open_stream(
        self, path: str, documents: Sequence[Any], headers: Mapping[str, str], deadline: float
    ) -> Stream:
        """Return a request and its answer that both go on; Unanswered if no answer has begun."""
        sock: socket.socket | None = None
        stream: Stream | None = None
        try:
            sock = _connected(self.endpoint, self._tls, deadline)
            sock.settimeout(_rest(deadline))
            how = {**headers, **SEVERAL, "Transfer-Encoding": "chunked"}
            sock.sendall(self._request(path, how) + _chunk(documents))
            stream = Stream(sock, deadline)
            return stream
        except (OSError, EOFError, ValueError, IndexError) as error:
            raise Unanswered(error, sent=True) from error
        finally:
            if sock is not None and stream is None:
                sock.close()


class Stream(_OpenSocket):
    """A request that goes on, and its answer, too: documents, one of the answer on a line.

    One thread sends and reads. Others may wake it, or end the stream.
    """

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        """EOFError, OSError, ValueError or IndexError if no answer has begun by ``deadline``."""
        self._socket = sock
        self._woken, self._waker = socket.socketpair()
        self._polling = select.poll()
        for each in (sock, self._woken, self._waker):
            each.setblocking(False)
        for each in (sock, self._woken):
            self._polling.register(each, select.POLLIN)
        self._received = self._body = b""
        while b"\r\n\r\n" not in self._received:
            if not self._receive(deadline):
                raise TimeoutError("no answer in time")
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        self.status = int(head.split(None, 2)[1])
        self._keep()

    def send(self, documents: Sequence[Any]) -> None:
        """Send more documents; Unanswered if they cannot be sent."""
        try:
            self._socket.settimeout(_LONGEST_SEND)
            self._socket.sendall(_chunk(documents))
            self._socket.setblocking(False)
        except (OSError, ValueError) as error:
            raise Unanswered(error, sent=True) from error

    def line(self, until: float) -> bytes | None:
        """Return the next line: empty at the end, None if none comes by ``until``, or if woken."""
        try:
            while b"\n" not in self._body:
                if not self._unpack() and not self._receive(until):
                    return None
        except EOFError:
            return b""
        except (OSError, ValueError) as error:
            raise Unanswered(error, sent=True) from error
        line, _, self._body = self._body.partition(b"\n")
        return line + b"\n"

    def wake(self) -> None:
        """Let line() return, now or when it is called next."""
        with suppress(OSError):  # it has been woken often enough, or is closed
            self._waker.send(b"\0")

    def interrupt(self) -> None:
        """End it for the thread that waits for the next line."""
        with suppress(OSError):
            # Not SSLSocket's own method, which would take the session from under that thread.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it in this process."""
        with suppress(OSError):
            self._socket.close()

    def __del__(self) -> None:
        # Not in close(): another thread may be about to write, and its file would be another one.
        for each in ("_socket", "_woken", "_waker"):  # it may not have been made to the end
            with suppress(OSError, AttributeError):
                getattr(self, each).close()

    def _receive(self, until: float) -> bool:
        """Wait for bytes; False if none come by ``until``, or if woken; EOFError at the end."""
        while True:
            try:
                data = self._socket.recv(_MOST_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):  # TLS has messages of its own, too
                ready = self._polling.poll(max(until - clock(), 0.0) * 1000)
                with suppress(BlockingIOError):
                    ready = [] if self._woken.recv(_MOST_BYTES) else ready
                if not ready:
                    return False
                continue
            if not data:
                raise EOFError("the connection was closed")
            self._received += data
            return True

    def _unpack(self) -> bool:
        """Move a chunk that has come to the body, see RFC 9112, section 7.1; False if none has."""
        head, found, rest = self._received.partition(b"\r\n")
        if not found:
            return False
        size = int(head.partition(b";")[0], 16)
        if size == 0:
            raise EOFError("the answer is over")
        if len(rest) < size + 2:
            return False
        self._body, self._received = self._body + rest[:size], rest[size + 2 :]
        return True


def _chunk(documents: Sequence[Any]) -> bytes:
    data = "".join(map(json.dumps, documents)).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def _close_all(connections: list[_Connection]) -> None:
    with suppress(IndexError):
        while True:
            connections.pop().close()


def _connected(endpoint: Endpoint, tls: ssl.SSLContext | None, deadline: float) -> socket.socket:
    is_ready = False
    sock = _reached(endpoint, deadline)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if endpoint.scheme == "https" and tls is not None:
            sock.settimeout(_rest(deadline))
            sock = tls.wrap_socket(sock, server_hostname=endpoint.host)
        is_ready = True
        return sock
    finally:
        if not is_ready:
            sock.close()


def _reached(endpoint: Endpoint, deadline: float) -> socket.socket:
    """Connect to an address of the host; one that does not answer leaves time for the next one."""
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    for number, (*_, address) in enumerate(found, 1):
        try:
            # As a text, it has the zone of a link-local address.
            host, port = socket.getnameinfo(address, _NUMERIC)
            share = _rest(deadline) / (len(found) - number + 1)
            return socket.create_connection((host, int(port)), share)
        except OSError:
            if number == len(found):
                raise
    raise OSError("the host has no address")


def _rest(deadline: float) -> float:
    """Return the time limit of a socket."""
    return max(deadline - clock(), _SHORTEST_LIMIT)
