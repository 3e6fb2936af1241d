"""The keys of locks, what they say, and reading them: who holds, and who waits.

Below the prefix each lock has the holder's key, ``locks/<name>/h/<nonce>-<lease>``, and one key for
each who waits, ``locks/<name>/w/<nonce>``. There is at most one key below ``h/``: each grant
is made on the condition that there is none, or in place of the one that there is. A named owner's
hold leaves ``locks/<name>/t/`` behind for a while.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from distlock.backends.etcd.client import EtcdClient
from distlock.backends.etcd.messages import MOST_OPERATIONS, EtcdReply, KeyValue, get, get_from
from distlock.types.lease import Claim, Holder, LockInfo, Owner, State, Waiting
from distlock.types.owners import is_named
from distlock.types.values import batches

#: The kinds of keys.
_HOLDER, _WAITER, _LAST = "h", "w", "t"
#: The key of a lock that is left and stays taken has this before the nonce.
_RESERVED = "~"


class EtcdKeys:
    """The keys of one lock."""

    def __init__(self, prefix: str, name: str) -> None:
        self.all = f"{prefix}locks/{escaped(name)}/"
        self.holders = f"{self.all}{_HOLDER}/"
        self.waiters = f"{self.all}{_WAITER}/"
        #: says the token of the last hold of a named owner, for as long as its lease would have
        self.last_token = f"{self.all}{_LAST}/"

    def holds_of(self, nonce: str) -> str:
        """Return the beginning of the key with which a claim holds the lock."""
        return f"{self.holders}{nonce}-"

    def place_of(self, nonce: str) -> str:
        """Return the key with which a claim waits."""
        return f"{self.waiters}{nonce}"

    def reservations_of(self, nonce: str) -> str:
        """Return the beginning of the key of a lock that this claim has left before its time."""
        return f"{self.holders}{_RESERVED}{nonce}-"


def name_of(key: str) -> str:
    """Return the name of the lock that a key is of."""
    return unescaped(key.split("/")[-3])


def escaped(name: str) -> str:
    """Return the name of a lock, or its beginning, as one component of a key."""
    return name.replace("%", "%25").replace("/", "%2F")


def unescaped(component: str) -> str:
    """Return what was escaped()."""
    return component.replace("%2F", "/").replace("%25", "%")


@dataclass(frozen=True, slots=True)
class KeyData:
    """A holder's or waiter's key: whose it is, and since when, by the clock of its process.

    ``lasts`` is for how many seconds from ``renewed`` on the holder relies on it, or for how many
    the lock is reserved; ``ttl`` the length of the lease that the key is bound to.
    """

    owner: Owner
    lasts: float
    ttl: int
    since: datetime
    renewed: datetime
    renews: bool = False
    description: str = ""
    #: of the hold that was left, where the lock is reserved
    token: int | None = None

    @classmethod
    def of(cls, claim: Claim, ttl: int) -> KeyData:
        """Return what a key says for a claim that holds the lock, or waits, from now on."""
        now = datetime.now(UTC)
        return cls(
            claim.owner,
            claim.reserved,
            ttl,
            now,
            now,
            claim.renews,
            claim.label or claim.description,
        )

    def renewed_for(self, seconds: float, ttl: int) -> KeyData:
        """Return the value of the key when its lease is renewed."""
        return replace(self, lasts=seconds, ttl=ttl, renewed=datetime.now(UTC))

    @property
    def until(self) -> datetime:
        return self.renewed + timedelta(seconds=self.lasts)

    def is_of(self, claim: Claim) -> bool:
        """Return whether it is a hold of the same named owner."""
        return is_named(claim.owner) and self.owner == claim.owner

    def to_value(self) -> bytes:
        """Return the value of the key: JSON, for people to read."""
        fields: dict[str, Any] = {
            "since": self.since.isoformat(),
            "renewed": self.renewed.isoformat(),
            "lasts": self.lasts,
            "ttl": self.ttl,
            **self.owner.to_fields(),
            "description": self.description,
            "renews": self.renews,
        }
        if self.token is not None:
            fields["token"] = self.token
        return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")

    @classmethod
    def read(cls, value: bytes) -> KeyData:
        """Understand a value; one that is not ours has an owner without a name."""
        try:
            fields = json.loads(value)
            token = fields.get("token")
            return cls(
                Owner.from_fields(fields),
                float(fields["lasts"]),
                int(fields["ttl"]),
                datetime.fromisoformat(fields["since"]),
                datetime.fromisoformat(fields["renewed"]),
                bool(fields["renews"]),
                str(fields["description"]),
                None if token is None else int(token),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            epoch = datetime.fromtimestamp(0, UTC)
            return cls(Owner("foreign key", "unknown", 0, "unknown"), 0.0, 0, epoch, epoch)


@dataclass(frozen=True, slots=True)
class EtcdKey(KeyValue):
    """A key of a lock, as read from the cluster."""

    name: str
    kind: str
    nonce: str
    data: KeyData

    @classmethod
    def of(cls, kv: KeyValue) -> EtcdKey:
        kind, last = kv.key.split("/")[-2:]
        nonce = last.lstrip(_RESERVED).partition("-")[0]
        revisions = kv.created, kv.modified
        data = KeyData.read(kv.value)
        return cls(kv.key, kv.value, *revisions, kv.lease, name_of(kv.key), kind, nonce, data)

    @classmethod
    def first(cls, reply: EtcdReply, operation: int = 0) -> EtcdKey | None:
        """Return the first key that an operation of a transaction has read."""
        return next((cls.of(kv) for kv in reply.found(operation)), None)

    @property
    def token(self) -> int:
        return self.created if self.data.token is None else self.data.token

    @property
    def holder(self) -> Holder:
        """The holder that this key stands for."""
        return info_of(self.name, "", [self]).holders[0]


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The holder of a lock, and the waiters ahead, as one transaction has read them."""

    revision: int
    holder: EtcdKey | None
    #: the own place in the queue; None if it is gone
    own: EtcdKey | None
    #: the one just before the own one
    ahead: EtcdKey | None

    @property
    def is_next(self) -> bool:
        """Whether nobody is ahead, and nobody holds the lock."""
        return self.holder is None and self.ahead is None


def info_of(name: str, alias: str, keys: Iterable[EtcdKey]) -> LockInfo:
    """Return what is known of a lock, given all of its keys."""
    entries, now = sorted(keys, key=lambda entry: entry.created), datetime.now(UTC)
    waits = [entry.data for entry in entries if entry.kind == _WAITER]
    waiters = tuple(Waiting.of(one.owner, (now - one.since).total_seconds()) for one in waits)
    holder = next((entry for entry in entries if entry.kind == _HOLDER), None)
    if holder is None:
        last = next((entry.data.token for entry in entries if entry.kind == _LAST), None)
        return LockInfo(name, alias, token=last, waiters=waiters)
    data = holder.data
    return LockInfo(
        name,
        alias,
        State.HELD,
        owner=data.owner,
        token=holder.token,
        since=data.since,
        until=data.until,
        held_for=max((now - data.since).total_seconds(), 0.0),
        remaining=max((data.until - now).total_seconds(), 0.0),
        description=data.description,
        waiters=waiters,
        lease=data.lasts,
        renews=data.renews,
        renewed_at=data.renewed,
    )


#: Keys that are read in one request.
_BATCH = 1000


class LockReader:
    """See NameReader."""

    def __init__(self, client: EtcdClient, deadline: float | None) -> None:
        self._client = client
        self._alias = client.options.alias
        self._deadline = deadline

    def first(self, *beginnings: str) -> list[EtcdKey | None]:
        """Return the first key that begins so, for each of some beginnings."""
        found: list[EtcdKey | None] = []
        for some in batches(beginnings, MOST_OPERATIONS):
            reading = [get(key, prefix=True, limit=1) for key in some]
            reply = self._client.do(reading, self._deadline)
            found += [EtcdKey.first(reply, place) for place in range(len(some))]
        return found

    def stored(self, name: str) -> dict[str, str]:
        """Return the keys of a lock, oldest first, and what they say."""
        keys = get(EtcdKeys(self._client.options.prefix, name).all, prefix=True)
        found = self._client.do([keys], self._deadline).found()
        found.sort(key=lambda kv: kv.created)
        return {kv.key: kv.value.decode(errors="replace") for kv in found}

    def names(self, prefix: str) -> list[str]:
        """See NameReader.names()."""
        beginning = start = f"{self._client.options.prefix}locks/{escaped(prefix)}"
        names: set[str] = set()
        while True:
            some = get_from(start, beginning, limit=_BATCH, keys_only=True)
            found = self._client.do([some], self._deadline).found()
            names.update(name_of(kv.key) for kv in found)
            if len(found) < _BATCH:
                return sorted(names)
            start = f"{found[-1].key}\0"

    def look(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """See NameReader.look()."""
        for some in batches(names, MOST_OPERATIONS):
            keys = [EtcdKeys(self._client.options.prefix, name).all for name in some]
            reads = [get(key, prefix=True) for key in keys]
            reply = self._client.do(reads, self._deadline)
            for number, name in enumerate(some):
                yield info_of(name, self._alias, map(EtcdKey.of, reply.found(number)))
