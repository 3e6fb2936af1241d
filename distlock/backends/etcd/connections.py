"""HTTP connections to one member of a cluster."""

from __future__ import annotations

import json
import select
import socket
import ssl
import weakref
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

from distlock.backends.etcd.options import Endpoint
from distlock.concurrency.clock import clock

#: Connections that are kept for the next request.
_MOST_IDLE = 8
#: Seconds. A time limit of 0 would mean something else to a socket.
_SHORTEST_LIMIT = 0.001


class Unanswered(Exception):
    """There is no answer. ``sent``: the request may have been carried out."""

    def __init__(self, cause: BaseException, *, sent: bool) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.sent = sent


class Response:
    """The answer to a request, with the names that ``requests`` uses, which etcd3gw reads."""

    def __init__(self, response: HTTPResponse, body: bytes) -> None:
        self.status_code = response.status
        self.reason = response.reason
        self.text = body.decode(errors="replace")

    def json(self) -> Any:
        """Return the document; a list if there are several, one on a line, as from a stream."""
        documents = [json.loads(line) for line in self.text.splitlines() if line.strip()]
        return documents[0] if len(documents) == 1 else documents


class Connections:
    """Takes the place of a ``requests.Session`` for one member; threads may share it.

    Each request has a connection to itself. They are kept in a list, whose methods are atomic: an
    interrupt can leave no mutex locked. A session of ``requests`` takes twice as long for a
    request, has one time limit for all of them, sends the credentials of ``~/.netrc`` in place of a
    token, and cannot tell whether a request was sent.
    """

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._base = str(endpoint)
        self._idle: list[HTTPConnection] = []
        weakref.finalize(self, _close_all, self._idle)  # also at exit

    def close(self) -> None:
        """Close the connections that nobody uses. Those of the parent go on, after a fork."""
        _close_all(self._idle)

    def post(
        self,
        url: str,
        *,
        json: Any,
        timeout: object,
        data: bytes,
        deadline: float,
        headers: dict[str, str],
    ) -> Response:
        """Return the answer that comes by ``deadline``; Unanswered if none does.

        ``json`` and ``timeout`` are etcd3gw's, and not used.
        """
        connection = self._take()
        sent = False
        try:
            _connect(connection, deadline)
            sent = True
            connection.request("POST", url.removeprefix(self._base), data, headers)
            _limit(connection.sock, deadline)
            response = connection.getresponse()
            _limit(connection.sock, deadline)
            answer = Response(response, response.read())
        except (OSError, HTTPException) as error:
            connection.close()
            raise Unanswered(error, sent=sent) from error
        except BaseException:  # the rest of the answer may still come
            connection.close()
            raise
        if connection.sock is None or len(self._idle) >= _MOST_IDLE:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def open_stream(
        self, path: str, data: bytes, headers: dict[str, str], deadline: float
    ) -> Stream:
        """Return an answer that goes on; Unanswered if it does not begin by ``deadline``."""
        connection = self._new()
        try:
            _connect(connection, deadline)
            # Go's server drops what it has not read of a request when the answer begins, unless the
            # connection is to be closed after it.
            connection.request("POST", path, data, headers | {"Connection": "close"})
            _limit(connection.sock, deadline)
            return Stream(connection.sock, connection.getresponse())
        except (OSError, HTTPException) as error:
            connection.close()
            raise Unanswered(error, sent=True) from error
        except BaseException:
            connection.close()
            raise

    def _take(self) -> HTTPConnection:
        while self._idle:
            with suppress(IndexError):  # another thread was first
                connection = self._idle.pop()
                if not _is_readable(connection.sock):
                    return connection
                connection.close()  # the server has closed it
        return self._new()

    def _new(self) -> HTTPConnection:
        host, port = self._endpoint.host, self._endpoint.port
        if self._endpoint.scheme == "https":
            return HTTPSConnection(host, port, context=self._tls)
        return HTTPConnection(host, port)


class Stream:
    """An answer that goes on: documents, one on a line."""

    def __init__(self, sock: socket.socket, response: HTTPResponse) -> None:
        self._socket = sock
        self._response = response
        self.status = response.status

    def line(self, seconds: float) -> bytes | None:
        """Return the next line: empty at the end, None if nothing comes for so long."""
        try:
            self._socket.settimeout(seconds)
            return self._response.readline()
        except TimeoutError:
            return None
        except (OSError, HTTPException, ValueError, AttributeError) as error:
            # close() on another thread leaves the response without what it reads from.
            raise Unanswered(error, sent=True) from error

    def interrupt(self) -> None:
        """End it for the thread that waits for the next line."""
        with suppress(OSError):
            # Not SSLSocket's own method, which would take the session from under that thread.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it in this process."""
        with suppress(OSError):
            self._response.close()
            self._socket.close()


def _close_all(connections: list[HTTPConnection]) -> None:
    with suppress(IndexError):
        while True:
            connections.pop().close()


def _connect(connection: HTTPConnection, deadline: float) -> None:
    if connection.sock is None:
        connection.timeout = max(deadline - clock(), _SHORTEST_LIMIT)
        connection.connect()
    _limit(connection.sock, deadline)


def _limit(sock: socket.socket | None, deadline: float) -> None:
    if sock is not None:
        sock.settimeout(max(deadline - clock(), _SHORTEST_LIMIT))


def _is_readable(sock: socket.socket | None) -> bool:
    """Return whether there is something to read that nobody has asked for, such as the end."""
    if sock is None:
        return True
    polling = select.poll()
    polling.register(sock, select.POLLIN)
    return bool(polling.poll(0))
