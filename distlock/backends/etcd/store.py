"""Records as keys of etcd.

A directory is a range of keys, and one of them is its own: every change writes it, too, so its
``mod_revision`` is that of the last change::

    {prefix}records/{directory, escaped}/         the directory's own key: when it was changed
    {prefix}records/{directory, escaped}/={key}   a record: its value

A session is a lease. See "KV API guarantees" in etcd's documentation for its transactions,
revisions, leases and watches.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

from distlock.backends.etcd.client import EtcdClient
from distlock.backends.etcd.leases import whole_seconds
from distlock.backends.etcd.lock_keys import escaped, unescaped
from distlock.backends.etcd.messages import (
    MOST_OPERATIONS,
    EtcdReply,
    Json,
    KeyValue,
    LeaseNotFound,
    created,
    delete,
    get,
    get_from,
    modified,
    put,
    to_bytes,
)
from distlock.backends.etcd.watches import KeyWatch
from distlock.backends.store import (
    Absent,
    Address,
    Change,
    Condition,
    Exists,
    KeyRange,
    Peek,
    Put,
    Record,
    RecordStore,
    Renewal,
    Session,
    SessionEnded,
    Snapshot,
)
from distlock.concurrency.pending import Pending
from distlock.types.lease import RELIED_ON, SweepResult
from distlock.types.values import batches, decoded

#: Seconds after which a directory without records is removed.
_LONG = 24 * 3600.0


class EtcdStore(RecordStore):
    """The records that are kept in one cluster, below one prefix."""

    def __init__(self, client: EtcdClient) -> None:
        self._client, self._renewing = client, client.for_renewals()
        self._root = f"{client.options.prefix}records/"

    # Records

    def read(self, directory: str, deadline: float | None = None) -> Snapshot:
        own = self._own_key(directory)
        reply = self._client.do([get(own, prefix=True)], deadline)
        records = (_record(kv, own) for kv in reply.found() if kv.key != own)
        # The revision of the whole store, and not that of the directory's own key: what happened
        # just after the latter may have been compacted, and then a watch would end at once.
        return Snapshot.of(directory, reply.revision, records)

    def look(
        self, directory: str, keys: Collection[str], deadline: float | None = None
    ) -> Snapshot:
        own, asked = self._own_key(directory), [*keys]
        reply = self._client.do([get(_key(own, key)) for key in asked], deadline)
        records = (_record(kv, own) for place in range(len(asked)) for kv in reply.found(place))
        return Snapshot.of(directory, reply.revision, records)

    def peek(self, directory: str, peek: Peek, deadline: float | None = None) -> Snapshot:
        own, places = self._own_key(directory), len(peek.first)
        asked = [
            get(_key(own, prefix), prefix=True, limit=limit) for prefix, limit in peek.first.items()
        ]
        asked += [get(_key(own, prefix), prefix=True, count_only=True) for prefix in peek.count]
        if peek.listed is not None:
            asked.append(_listing(own, peek.listed))
        reply = self._client.do(asked, deadline)
        found = [_record(kv, own) for place in range(places) for kv in reply.found(place)]
        records = {record.key: record for record in sorted(found, key=lambda one: one.key)}
        counts = {prefix: reply.count(place) for place, prefix in enumerate(peek.count, places)}
        names = reply.found(len(asked) - 1) if peek.listed is not None else ()
        keys = [kv.key.removeprefix(_key(own, "")) for kv in names]
        return Snapshot(directory, reply.revision, records, counts=counts, keys=keys)

    def apply(
        self,
        directory: str,
        changes: Sequence[Change],
        conditions: Collection[Condition] = (),
        deadline: float | None = None,
    ) -> int | None:
        own = self._own_key(directory)
        compare = [part for condition in conditions for part in _compare(condition, own)]
        success = [_operation(change, own) for change in changes]
        success.append(put(own, f"{time.time():.0f}"))
        try:
            # Sent twice, it could meet its own changes, or another client's.
            reply = self._client.txn(compare, success, (), deadline, repeatable=False)
        except LeaseNotFound as error:
            raise SessionEnded(f"a session for records of {directory!r} has ended") from error
        if not reply.succeeded:
            return None
        self._tell_observers(directory, reply.revision)
        return reply.revision

    def directories(self, prefix: str = "", deadline: float | None = None) -> list[str]:
        listed = self._list(self._root + escaped(prefix), deadline)
        return sorted(unescaped(name) for name, keys in listed if len(keys) > 1)

    def _list(self, start: str, deadline: float | None) -> Iterator[tuple[str, list[KeyValue]]]:
        """Yield directories whose keys begin so, as escaped, and their keys without values."""
        reply = self._client.do([get(start, prefix=True, keys_only=True)], deadline)
        for name, keys in groupby(reply.found(), self._name_of):
            yield name, list(keys)

    def _own_key(self, directory: str) -> str:
        return f"{self._root}{escaped(directory)}/"

    def _name_of(self, kv: KeyValue) -> str:
        return kv.key.removeprefix(self._root).partition("/")[0]

    # Sessions

    def open_session(self, seconds: float, deadline: float | None = None) -> Session:
        lease = self._client.grant(whole_seconds(seconds), deadline)
        until = lease.sent_at + min(seconds, lease.ttl) * RELIED_ON
        return Session(str(lease.id), seconds, until)

    def renew(
        self,
        sessions: Collection[str],
        records: Collection[Address] = (),
        deadline: float | None = None,
    ) -> Renewal:
        return self._renewing.ask_twice(partial(self._renew, sessions, records), deadline)

    def _renew(
        self, sessions: Collection[str], records: Collection[Address], deadline: float
    ) -> Renewal:
        renewed = self._renewing.keep_alive([*map(int, sessions)], deadline)
        there, reply = self._look(records, deadline)
        known = renewed.ttls if renewed.proven_by(reply) else {}
        alive = frozenset(str(lease) for lease, ttl in known.items() if ttl > 0)
        ended = frozenset(str(lease) for lease, ttl in known.items() if ttl <= 0)
        return Renewal(alive, ended, there, frozenset(records) - there)

    def _look(
        self, records: Collection[Address], deadline: float | None
    ) -> tuple[frozenset[Address], EtcdReply]:
        """Return which of the records are there, and the last answer; there is always one."""
        there: set[Address] = set()
        for part in [*batches(records, MOST_OPERATIONS)] or [[]]:
            keys = [_key(self._own_key(directory), key) for directory, key in part]
            looks = [get(key, keys_only=True) for key in keys or [self._root]]
            reply = self._renewing.do(looks, deadline)
            there.update(one for place, one in enumerate(part) if reply.found(place))
        return frozenset(there), reply

    def end_session(self, session: str, deadline: float | None = None) -> None:
        self._client.revoke(int(session), deadline)

    # Waking up

    def watch(self, directory: str, since: int, key: str | None = None) -> Pending[None]:
        own = self._own_key(directory)
        watched = own if key is None else _key(own, key)
        added: list[KeyWatch] = []
        pending: Pending[None] = Pending(lambda: [watch.cancel() for watch in added])
        with suppress(RuntimeError):  # no more threads: who waits looks now and then, too
            resolve = partial(pending.resolve, None)
            added.append(self._client.watches.add(watched, since, resolve, prefix=key is None))
        return pending

    # Clearing

    def sweep(self, deadline: float | None = None) -> SweepResult:
        """See RecordStore.sweep(). etcd ends sessions by itself."""
        removed = 0
        for name, keys in self._list(self._root, deadline):
            if len(keys) == 1:
                removed += self._remove_if_long_empty(f"{self._root}{name}/", deadline)
        return SweepResult(removed=removed)

    def _remove_if_long_empty(self, own: str, deadline: float | None) -> bool:
        found = self._client.do([get(own)], deadline).found()
        if not found or float(found[0].value) > time.time() - _LONG:
            return False
        same = modified(own, found[0].modified)  # so that no record was put since
        return self._client.txn([same], [delete(own)], (), deadline).succeeded


def _key(own: str, key: str) -> str:
    return f"{own}={key}"


def _listing(own: str, listed: KeyRange) -> Json:
    prefix, limit, after, reverse = listed
    how: dict[str, Any] = {"keys_only": True, "limit": limit}
    start = prefix if reverse or not after else max(f"{after}\0", prefix)
    if reverse:
        how |= {"sort_target": "KEY", "sort_order": "DESCEND"}
    if reverse and after:
        how["range_end"] = to_bytes(_key(own, after))
    return get_from(_key(own, start), _key(own, prefix), **how)


def _record(kv: KeyValue, own: str) -> Record:
    session = str(kv.lease) if kv.lease else None
    key = kv.key.removeprefix(_key(own, ""))
    return Record(key, decoded(kv.value), kv.created, kv.modified, session)


def _compare(condition: Condition, own: str) -> list[Json]:
    if isinstance(condition, Absent):
        return [created(_key(own, condition.key), 0)]
    if isinstance(condition, Exists):
        key = _key(own, condition.key)
        there = created(key, 0, "GREATER")
        return [there] if condition.revision is None else [there, modified(key, condition.revision)]
    return [modified(own, condition.revision + 1, "LESS")]


def _operation(change: Change, own: str) -> Json:
    key = _key(own, change.key)
    if isinstance(change, Put):
        return put(key, change.text, int(change.session or 0))
    return delete(key)
