"""etcd's words: the parts of its requests, what is in its replies, and what its errors mean.

See ``rpc.proto`` of etcd. In JSON, bytes are base64 and large numbers are texts; what is zero,
empty or false is left out.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias

from distlock.backends.etcd.connections import Response, Unanswered
from distlock.exceptions import LockUnavailable, NotPermitted

#: A part of a request, or of a reply, as it is in JSON.
Json: TypeAlias = Mapping[str, Any]

#: The most operations of one transaction. A server takes 128 unless ``--max-txn-ops`` says
#: otherwise, and counts those of inner transactions, too.
MOST_OPERATIONS = 100


def to_bytes(text: str | bytes) -> str:
    """Return a key or value as it is in JSON."""
    return b64encode(text.encode() if isinstance(text, str) else text).decode("ascii")


def key_range(key: str, prefix: bool) -> dict[str, Any]:
    """Return what stands for a key, or for all keys that begin with it."""
    where = {"key": to_bytes(key)}
    if prefix:
        raw = key.encode()  # in UTF-8 no byte is 255
        where["range_end"] = to_bytes(raw[:-1] + bytes([raw[-1] + 1]))
    return where


# Operations of a transaction


def get(key: str, *, prefix: bool = False, **how: Any) -> Json:
    """Read a key, or with ``prefix`` all keys that begin with it.

    ``how``: ``limit``, ``sort_order`` ("ASCEND", "DESCEND"), ``sort_target`` ("KEY", "CREATE",
    "MOD"), ``max_create_revision``, ``keys_only``, ``count_only``.
    """
    return {"request_range": key_range(key, prefix) | how}


def get_from(start: str, prefix: str, **how: Any) -> Json:
    """Read the keys from ``start`` on that begin with ``prefix``; see get()."""
    return {"request_range": key_range(prefix, True) | {"key": to_bytes(start)} | how}


def put(key: str, value: str | bytes, lease: int = 0) -> Json:
    """Write a key; it goes when its lease ends."""
    return {"request_put": {"key": to_bytes(key), "value": to_bytes(value), "lease": lease}}


def delete(key: str, *, prefix: bool = False, **how: Any) -> Json:
    """Delete a key, or with ``prefix`` all keys that begin with it; ``how``: ``prev_kv``."""
    return {"request_delete_range": key_range(key, prefix) | how}


def txn(compare: Sequence[Json], success: Sequence[Json], failure: Sequence[Json] = ()) -> Json:
    """Return a transaction, which can be one of the operations of another one."""
    body = {"compare": [*compare], "success": [*success], "failure": [*failure]}
    return {"request_txn": body}


# Conditions of a transaction


def created(key: str, revision: int, result: str = "EQUAL", *, prefix: bool = False) -> Json:
    """Compare the revision that created a key; it is 0 if there is no such key.

    ``result``: "EQUAL", "GREATER", "LESS" or "NOT_EQUAL". With ``prefix`` all keys must meet it
    that begin with ``key``; if there is none, 0 must.
    """
    how = {"target": "CREATE", "result": result, "create_revision": revision}
    return key_range(key, prefix) | how


def modified(key: str, revision: int, result: str = "EQUAL") -> Json:
    """Compare the revision that wrote a key last; see created()."""
    return {"key": to_bytes(key), "target": "MOD", "result": result, "mod_revision": revision}


def bound(key: str, lease: int) -> Json:
    """Compare the lease that a key is bound to."""
    return {"key": to_bytes(key), "target": "LEASE", "lease": lease}


# Replies


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key, what it says, and which revisions of the store created it and wrote it last."""

    key: str
    value: bytes
    created: int
    modified: int
    lease: int

    @classmethod
    def read(cls, kv: Json) -> KeyValue:
        return cls(
            b64decode(kv["key"]).decode(errors="replace"),
            b64decode(kv.get("value", "")),
            int(kv.get("create_revision", 0)),
            int(kv.get("mod_revision", 0)),
            int(kv.get("lease", 0)),
        )


@dataclass(frozen=True, slots=True)
class EtcdReply:
    """The answer to a request.

    ``sent_at`` is the time of clock() before it was sent for the first time. ``repeated``: it was
    sent before, without an answer, and may have been carried out then.
    """

    body: Json
    sent_at: float
    repeated: bool = False

    @property
    def revision(self) -> int:
        """The revision of the store when it was answered."""
        return int(self.body.get("header", {}).get("revision", 0))

    @property
    def term(self) -> int:
        """The term of the latest entry of the log that the member who answered has applied."""
        return int(self.body.get("header", {}).get("raft_term", 0))

    @property
    def succeeded(self) -> bool:
        """Whether the conditions of a transaction were met."""
        return bool(self.body.get("succeeded"))

    def found(self, operation: int = 0) -> list[KeyValue]:
        """Return the keys that an operation of the transaction has read; it counts from 0."""
        return self._keys(operation, "response_range", "kvs")

    def count(self, operation: int = 0) -> int:
        """Return how many keys there are in the range that an operation has read."""
        answer = self.body.get("responses", ())[operation].get("response_range", {})
        return int(answer.get("count", 0))

    def deleted(self, operation: int = 0) -> list[KeyValue]:
        """Return the keys that an operation has deleted, if it was to tell (``prev_kv``)."""
        return self._keys(operation, "response_delete_range", "prev_kvs")

    def _keys(self, operation: int, kind: str, field: str) -> list[KeyValue]:
        answer = self.body.get("responses", ())[operation].get(kind, {})
        return [KeyValue.read(kv) for kv in answer.get(field, ())]

    def inner(self, operation: int) -> EtcdReply:
        """Return the answer to a transaction that was one of the operations."""
        answer = self.body["responses"][operation]["response_txn"]
        return EtcdReply(
            {"header": self.body.get("header", {}), **answer}, self.sent_at, self.repeated
        )


# Codes of gRPC, see its "Status codes and their use".
_CANCELLED, _UNKNOWN, _BAD_ARGUMENT, _TIMEOUT, _NOT_FOUND = 1, 2, 3, 4, 5
_FORBIDDEN, _EXHAUSTED, FAILED_PRECONDITION, _INTERNAL, _UNAVAILABLE = 7, 8, 9, 13, 14
_UNAUTHENTICATED = 16

#: Another member may be able to answer.
_TRY_ANOTHER = (_CANCELLED, _UNKNOWN, _TIMEOUT, _INTERNAL, _UNAVAILABLE)
#: Of these errors, those that are sent before anything is done.
_NOT_DONE = ("no leader", "too many requests", "not supported for learner", "not capable")
#: Errors that are about the user, whatever their code is.
_ABOUT_USER = ("user name is empty", "authentication failed", "auth store is old")


class EtcdError(LockUnavailable):
    """The cluster has answered with an error; ``code`` is that of gRPC."""

    def __init__(self, text: str, code: int, *, maybe_applied: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.maybe_applied = maybe_applied

    @property
    def is_for_another(self) -> bool:
        """Whether another member may answer where this one has refused."""
        busy = self.code == _EXHAUSTED and "too many requests" in str(self)
        return busy or self.code in _TRY_ANOTHER

    @property
    def refuses_token(self) -> bool:
        """Whether a new token may help."""
        about_user = any(one in str(self) for one in _ABOUT_USER)
        return self.code == _UNAUTHENTICATED or (self.code == _BAD_ARGUMENT and about_user)


class LeaseNotFound(EtcdError):
    """There is no lease of this id: it has ended, or was never granted."""


class EtcdRefusal(EtcdError, NotPermitted):
    """The cluster refuses the user, or what it asks for."""


def unanswered(where: str, error: Unanswered) -> LockUnavailable:
    """Return the error for a member that has not answered; ``where`` names it."""
    problem = "does not answer" if error.sent else "cannot be reached"
    unavailable = LockUnavailable(f"{where} {problem} ({error})")
    unavailable.maybe_applied = error.sent
    return unavailable


def not_etcd(where: str) -> EtcdError:
    """Return the error for an answer that is not etcd's."""
    return EtcdError(f"{where} does not answer like etcd", _UNAVAILABLE, maybe_applied=True)


def refused(where: str, user: str | None, response: Response) -> EtcdError:
    """Return the error for a member that has answered with one."""
    text = response.text.strip()
    try:
        answer = json.loads(text)
        if isinstance(answer["error"], Mapping):  # of a stream
            answer = {**answer["error"], "code": answer["error"]["grpc_code"]}
        code, message = int(answer["code"]), str(answer["message"])
    except (ValueError, TypeError, KeyError):
        if response.status == HTTPStatus.NOT_FOUND:
            problem = "does not know the path /v3/: etcd 3.4 or newer is needed"
            return EtcdError(f"{where} {problem}", _NOT_FOUND)
        problem = f"answers {response.reason}: {text[:200]}"
        return EtcdError(f"{where} {problem}", _UNAVAILABLE, maybe_applied=True)
    maybe_applied = code in _TRY_ANOTHER and not any(one in message for one in _NOT_DONE)
    if code in (_UNAUTHENTICATED, _FORBIDDEN) or any(one in message for one in _ABOUT_USER):
        whom = f"the user {user!r}" if user else "a client without OPTIONS['user']"
        refusal = f"{where} refuses {whom}: {message}"
        return EtcdRefusal(refusal, code, maybe_applied=maybe_applied)
    kind = LeaseNotFound if code == _NOT_FOUND else EtcdError
    return kind(f"{where} refuses: {message}", code, maybe_applied=maybe_applied)
