"""The client of an etcd cluster: requests with failover, leases, watches. It knows no locks."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar, cast

from distlock.backends.etcd.connections import SEVERAL, Connections, Stream, Unanswered
from distlock.backends.etcd.messages import (
    FAILED_PRECONDITION,
    EtcdError,
    EtcdReply,
    Json,
    LeaseNotFound,
    not_etcd,
    refused,
    txn,
    unanswered,
)
from distlock.backends.etcd.options import EtcdOptions
from distlock.backends.etcd.watches import Watches
from distlock.concurrency.clock import backoff, clock, left
from distlock.exceptions import LockUnavailable

T = TypeVar("T")

#: The path of the HTTP gateway since etcd 3.4.
_API = "/v3/"

#: HTTP's codes for a token that is refused.
_REFUSED = (400, 401)

#: A member that has lost its leader is to say so, instead of waiting for one.
_HEADERS = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}

#: Seconds that one member has at least, before the next one is asked.
_SHORTEST_SHARE = 0.3
#: Seconds between two rounds in which no member could answer.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5

_MOST_LEASES = 2**63 - 1
_KEEP_ALIVE = "lease/keepalive"


@dataclass(frozen=True, slots=True)
class EtcdLease:
    """A lease of the cluster: its keys go when it ends.

    It ends ``ttl`` seconds after ``sent_at`` of clock() at the earliest. ``ttl`` is what the
    cluster has granted, which may be more than was asked for.
    """

    id: int
    ttl: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """The answer to requests to renew leases.

    ``ttls``: by lease, the seconds for which it runs from ``sent_at`` on; 0 if it is gone.

    A member that has been deposed, and has not noticed, answers as well, and what it says means
    nothing: the new leader lets the lease end earlier. So it counts only together with a later
    linearizable read or write that was answered in the same ``term``: see proven_by().
    """

    ttls: Mapping[int, int]
    sent_at: float
    term: int

    def proven_by(self, later: EtcdReply) -> bool:
        """Return whether the member that renewed the leases was the leader.

        ``later`` is the answer to a linearizable request that was sent after this one was answered.
        ``term`` was read before the leases were renewed. If it is also that of a later request,
        no newer leader had been elected in between. See ``LeaseKeepAlive`` in etcd's
        ``v3rpc/lease.go``, and "Raft refloated", section 6.4, for such reads.
        """
        return self.term == later.term


class EtcdClient:
    """Asks a cluster, with failover and time limits. Threads may share it.

    Every method raises LockUnavailable if the cluster could not be asked in time, or refuses. Its
    ``maybe_applied`` tells whether the request may have been carried out.
    """

    _urgency: ClassVar[int] = Connections.OTHER

    def __init__(self, options: EtcdOptions) -> None:
        self.options = options
        #: calls back when keys change
        self.watches = Watches(self._open_watch)
        #: first the one that has answered last; replaced as a whole
        self._members = [Connections(endpoint, options.tls) for endpoint in options.endpoints]
        #: for a cluster with authentication; None before it was asked for
        self._token: str | None = None

    def close(self) -> None:
        """Give connections back. The client may be used again afterwards."""
        self.watches.close()
        for member in self._members:
            member.close()

    def for_renewals(self) -> EtcdClient:
        """Return the same client, but over connections that only renewals use."""
        return _RenewingClient(self)

    # Requests

    def ask(
        self,
        path: str,
        bodies: Sequence[Json],
        deadline: float | None = None,
        *,
        repeatable: bool = True,
    ) -> EtcdReply:
        """Return the answer to a request, such as ``ask("kv/range", [{"key": …}])``.

        Where etcd takes a stream of requests it may have several ``bodies``. If a member does not
        answer, others are asked. A request is sent again after one that may have been carried out
        only if it is ``repeatable``: if doing it twice does no harm.
        """
        sent_at = clock()
        ends = sent_at + left(deadline, self.options.timeout)
        data = "".join(map(json.dumps, bodies)).encode()
        headers = _HEADERS if len(bodies) == 1 else _HEADERS | SEVERAL
        maybe_applied = reached = False
        problem: LockUnavailable | None = None
        pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            members = self._members
            for place, member in enumerate(members):
                share = max((ends - clock()) / (len(members) - place), _SHORTEST_SHARE)
                until = min(ends, clock() + share)
                try:
                    body = self._post(member, path, data, headers, until)
                except LockUnavailable as error:
                    maybe_applied |= error.maybe_applied
                    answered = isinstance(error, EtcdError)
                    # An answer says more than silence, in what was left of the time, does.
                    if problem is None or answered or not isinstance(problem, EtcdError):
                        problem = error
                    problem.maybe_applied = maybe_applied
                    if isinstance(error, EtcdError) and not error.is_for_another:
                        raise
                    reached |= answered or error.maybe_applied
                    if clock() >= ends or (maybe_applied and not repeatable):
                        raise problem from problem.__cause__
                else:
                    self._members = members[place:] + members[:place]
                    return EtcdReply(body, sent_at, maybe_applied)
            pause = next(pauses)
            if problem is not None and (not reached or clock() + pause >= ends):
                raise problem
            time.sleep(pause)

    def txn(
        self,
        compare: Sequence[Json],
        success: Sequence[Json],
        failure: Sequence[Json] = (),
        deadline: float | None = None,
        *,
        repeatable: bool = True,
    ) -> EtcdReply:
        """Carry out a transaction: ``success`` if all of ``compare`` is true, else ``failure``.

        All reads in it are linearizable. See ask(), and messages.py for the parts.
        """
        body = txn(compare, success, failure)["request_txn"]
        return self.ask("kv/txn", [body], deadline, repeatable=repeatable)

    def do(self, operations: Sequence[Json], deadline: float | None = None) -> EtcdReply:
        """Carry out operations in one step, without a condition. See txn()."""
        return self.txn((), operations, (), deadline)

    def ask_twice(self, questions: Callable[[float], T], deadline: float | None) -> T:
        """Return ``questions(deadline)``; they are asked again if half of the time was not enough.

        So a connection that has fallen silent does not cost all of the time, also where one address
        leads to all members.
        """
        # Without a deadline both together last as long as the cluster gets for an answer.
        timeout = self.options.timeout
        half = (timeout if deadline is None else left(deadline, 2 * timeout)) / 2
        middle = clock() + half
        try:
            return questions(middle)
        except LockUnavailable:
            if clock() < middle:
                raise
        return questions(clock() + half)

    def _post(
        self, member: Connections, path: str, data: bytes, headers: dict[str, str], deadline: float
    ) -> Any:
        """Ask one member, with a token if there has to be one."""
        token = self._valid_token(member, deadline)
        try:
            return self._send(member, path, data, _with_token(headers, token), deadline)
        except EtcdError as error:
            if self.options.user is None or not error.refuses_token:
                raise
        if self._token == token:  # else another thread has got a new one
            self._token = None
        token = self._valid_token(member, deadline)
        return self._send(member, path, data, _with_token(headers, token), deadline)

    def _send(
        self, member: Connections, path: str, data: bytes, headers: dict[str, str], deadline: float
    ) -> Any:
        # No hold, and no place in a queue, is to be lost because its request stands behind others.
        urgency = max(self._urgency, member.PLACE if path == _KEEP_ALIVE else member.OTHER)
        try:
            response = member.post(f"{_API}{path}", data, headers, deadline, urgency)
        except Unanswered as error:
            raise unanswered(self._where(member), error) from error.__cause__
        if response.status != HTTPStatus.OK:
            raise refused(self._where(member), self.options.user, response)
        try:
            answer = response.json()
        except ValueError as error:
            raise not_etcd(self._where(member)) from error
        if not isinstance(answer, dict | list) or not answer:
            raise not_etcd(self._where(member))
        return answer

    def _where(self, member: Connections) -> str:
        return f"DISTLOCK[{self.options.alias!r}]: etcd at {member.endpoint}"

    # Authentication

    def _valid_token(self, member: Connections, deadline: float) -> str | None:
        """Return the token; it is empty if the cluster asks for none."""
        if self.options.user is None:
            return None
        token = self._token
        if token is None:
            password = str.__str__(cast(str, self.options.password))
            data = json.dumps({"name": self.options.user, "password": password}).encode()
            try:
                answer = self._send(member, "auth/authenticate", data, _HEADERS, deadline)
            except LockUnavailable as error:
                error.maybe_applied = False
                if not isinstance(error, EtcdError) or error.code != FAILED_PRECONDITION:
                    raise
                answer = {"token": ""}  # authentication is not enabled
            token = self._token = str(answer["token"])
        return token

    # Leases

    def grant(
        self, seconds: int, deadline: float | None = None, lease_id: int | None = None
    ) -> EtcdLease:
        """Make a lease of so many whole seconds at least; ``lease_id``: see new_lease_id().

        Its keys go after that time without a keep_alive().
        """
        number, sent_at = lease_id or new_lease_id(), clock()
        try:
            reply = self.ask("lease/grant", [{"TTL": seconds, "ID": number}], deadline)
        except EtcdError as error:
            if error.code != FAILED_PRECONDITION or not error.maybe_applied:
                raise
            # It exists: this was sent before, and carried out, and the answer was lost.
            status = self.ask("lease/timetolive", [{"ID": number}], deadline)
            return EtcdLease(number, int(status.body.get("grantedTTL", 0)), sent_at)
        return EtcdLease(number, int(reply.body["TTL"]), reply.sent_at)

    def keep_alive(self, lease_ids: Sequence[int], deadline: float | None = None) -> KeepAlive:
        """Renew leases, in one request; read KeepAlive before relying on the answer."""
        if not lease_ids:
            return KeepAlive({}, clock(), 0)
        reply = self.ask(_KEEP_ALIVE, [{"ID": one} for one in lease_ids], deadline)
        answers = reply.body if isinstance(reply.body, list) else [reply.body]
        results = [answer["result"] for answer in answers if "result" in answer]
        ttls = {int(result["ID"]): int(result.get("TTL", 0)) for result in results}
        terms = {int(result["header"]["raft_term"]) for result in results}
        # If the term has changed meanwhile, no later answer can be of the same one.
        return KeepAlive(ttls, reply.sent_at, terms.pop() if len(terms) == 1 else -1)

    def revoke(self, lease_id: int, deadline: float | None = None) -> bool:
        """End a lease, and delete its keys; False if it has ended. Doing it twice does no harm."""
        try:
            self.ask("lease/revoke", [{"ID": lease_id}], deadline)
        except LeaseNotFound:
            return False
        return True

    # Watches

    def _open_watch(self, requests: Sequence[Json]) -> Stream:
        """Open a stream of changes at one member; at the next one if this one does not answer."""
        member = self._members[0]
        deadline = clock() + self.options.timeout
        try:
            token = self._valid_token(member, deadline)
            headers = _with_token(_HEADERS, token)
            stream = member.open_stream(f"{_API}watch", requests, headers, deadline)
            if stream.status == HTTPStatus.OK:
                return stream
            stream.close()
            if stream.status in _REFUSED:
                self._token = None
            raise OSError(f"status {stream.status}")
        except (Unanswered, LockUnavailable, OSError) as error:
            first, *others = self._members
            if first is member:  # begin the next request with another one
                self._members = [*others, first]
            raise Unanswered(error, sent=True) from error


class _RenewingClient(EtcdClient):
    """Another client's double: it shares all with it, but for the urgency of its requests."""

    _urgency = Connections.RENEWAL

    def __init__(self, client: EtcdClient) -> None:
        self.__dict__ = client.__dict__


def new_lease_id() -> int:
    """Return an id for a lease, so that it is known before it is granted."""
    return random.SystemRandom().randint(1, _MOST_LEASES)


def _with_token(headers: dict[str, str], token: str | None) -> dict[str, str]:
    return headers | {"Authorization": token} if token else headers
