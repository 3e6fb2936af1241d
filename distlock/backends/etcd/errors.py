"""What etcd's errors mean: whether a request may have been carried out, and who else to ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from distlock.backends.etcd.connections import Response, Unanswered
from distlock.exceptions import LockUnavailable, NotPermitted

# Codes of gRPC, see its "Status codes and their use".
_CANCELLED, _UNKNOWN, _BAD_ARGUMENT, _TIMEOUT, NOT_FOUND = 1, 2, 3, 4, 5
_FORBIDDEN, EXHAUSTED, FAILED_PRECONDITION, _INTERNAL, _UNAVAILABLE = 7, 8, 9, 13, 14
_UNAUTHENTICATED = 16

#: Another member may be able to answer.
_TRY_ANOTHER = (_CANCELLED, _UNKNOWN, _TIMEOUT, _INTERNAL, _UNAVAILABLE)
#: Of these errors, those that are told before anything is done.
_NOT_DONE = ("no leader", "too many requests", "not supported for learner", "not capable")
#: Errors that are about the user, whatever their code is.
_ABOUT_USER = ("user name is empty", "authentication failed", "auth store is old")


class EtcdError(LockUnavailable):
    """The cluster has answered with an error; ``code`` is that of gRPC."""

    def __init__(self, text: str, code: int, *, maybe_applied: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.maybe_applied = maybe_applied


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
            return EtcdError(f"{where} {problem}", NOT_FOUND)
        problem = f"answers {response.reason}: {text[:200]}"
        return EtcdError(f"{where} {problem}", _UNAVAILABLE, maybe_applied=True)
    maybe_applied = code in _TRY_ANOTHER and not any(one in message for one in _NOT_DONE)
    if code in (_UNAUTHENTICATED, _FORBIDDEN) or any(one in message for one in _ABOUT_USER):
        whom = f"the user {user!r}" if user else "a client without OPTIONS['user']"
        refusal = f"{where} refuses {whom}: {message}"
        return EtcdRefusal(refusal, code, maybe_applied=maybe_applied)
    return EtcdError(f"{where} refuses: {message}", code, maybe_applied=maybe_applied)


def is_for_another(error: EtcdError) -> bool:
    """Return whether another member may answer where one has refused."""
    return error.code in _TRY_ANOTHER or (
        error.code == EXHAUSTED and "too many requests" in str(error)
    )


def refuses_token(error: EtcdError) -> bool:
    """Return whether a new token may help."""
    if error.code == _UNAUTHENTICATED:
        return True
    return error.code == _BAD_ARGUMENT and any(one in str(error) for one in _ABOUT_USER)
