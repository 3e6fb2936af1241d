"""Reading the records of a directory in ZooKeeper: all, some by their keys, or the first ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kazoo.protocol.serialization import Exists as Stat
from kazoo.protocol.serialization import GetChildren2, GetData, Sync

from distlock.backends.store import (
    KeyRange,
    Record,
    RecordStore,
    Snapshot,
    count_keys,
    first_keys,
    list_keys,
)
from distlock.backends.zookeeper.client import Client
from distlock.backends.zookeeper.record_nodes import (
    DirectoryNode,
    DirectoryView,
    RecordNode,
    SeenLast,
    is_mark,
    revision_of,
)
from distlock.backends.zookeeper.tree import escaped, unescaped


class RecordReader(RecordStore):
    """The part of a store that reads records."""

    def __init__(self, root: str, client: Callable[[], Client]) -> None:
        """``root`` is the path of the node of all directories; for ``client`` see the store."""
        self._root = root
        self._client = client
        self._seen_last = SeenLast()

    def _path(self, directory: str) -> str:
        return f"{self._root}/{escaped(directory)}"

    def read(self, directory: str, deadline: float | None = None) -> Snapshot:
        """See RecordStore.read().

        The list of the records' names and the revision are of one moment. A record was the same in
        that moment if it was written before, or if it was read before and has not been written
        since. If one was not, all are read again, in the request that lists them. So are those that
        were seen last.
        """
        path = self._path(directory)
        known = self._seen_last.get(path)
        again = [record.path for record in known.records.values()] if known else []
        _, nodes, own, stat = self._read(path, sorted, again, deadline)
        if stat is None:
            self._seen_last.keep(DirectoryView(DirectoryNode(path), {}))
        elif own and own[1].version == stat.version:
            self._keep(path, own[0], stat, nodes)
        records = (node.record(key) for key, node in nodes.items())
        return Snapshot.of(directory, _revision(stat), records)

    def peek(
        self,
        directory: str,
        first: Mapping[str, int],
        count: Collection[str] = (),
        deadline: float | None = None,
        *,
        listed: KeyRange | None = None,
    ) -> Snapshot:
        """See RecordStore.peek()."""
        choose = partial(first_keys, first=first)
        keys, nodes, _, stat = self._read(self._path(directory), choose, [], deadline)
        records = {key: node.record(key) for key, node in nodes.items()}
        counts, some = count_keys(keys, count), list_keys(keys, listed)
        return Snapshot(directory, _revision(stat), records, counts=counts, keys=some)

    def missing(
        self, directory: str, keys: Collection[str], deadline: float | None = None
    ) -> Collection[str]:
        """See RecordStore.missing(). Unlike look() it reads once, however busy the directory is."""
        if not keys:
            return ()
        client, path = self._client(), self._path(directory)
        looks = [Stat(f"{path}/{escaped(key)}", None) for key in keys]
        _, *replies = client.ask([Sync(path), *looks], deadline)
        return {key for key, one in zip(keys, replies, strict=True) if not client.found(one)}

    def _read(
        self,
        path: str,
        choose: Callable[[Sequence[str]], Sequence[str]],
        again: list[str],
        deadline: float | None,
    ) -> tuple[Sequence[str], dict[str, RecordNode], Any, Any]:
        """Return all keys of a directory, the records of those that were chosen, and two more.

        These are the node of the directory as it was read after that, and its stat of the moment;
        None if it is not there. ``again``: paths that are read in the request that lists the keys.
        """
        client = self._client()
        before: dict[str, RecordNode | None] = {}
        while True:
            requests = [Sync(path), GetChildren2(path, None), GetData(path, None)]
            requests += [GetData(each, None) for each in again]
            _, listed, own, *replies = client.ask(requests, deadline)
            listing = client.found(listed)
            if listing is None:
                return [], {}, None, None
            children, stat = listing
            keys = [unescaped(child) for child in children if not is_mark(child)]
            paths = {key: f"{path}/{escaped(key)}" for key in choose(keys)}
            now = records_at(client, dict(zip(again, map(client.found, replies), strict=True)))
            new = [each for each in paths.values() if each not in now]
            now |= records_at(client, client.find(GetData, new, deadline))
            nodes = {
                key: one
                for key, each in paths.items()
                if (one := now[each]) and _was_there(one, before.get(each), stat.mzxid)
            }
            if len(nodes) == len(paths):
                return keys, nodes, client.found(own), stat
            before = {each: now[each] for each in paths.values()}
            again = [*paths.values()]

    def _keep(self, path: str, data: bytes, stat: Any, nodes: Mapping[str, RecordNode]) -> None:
        with suppress(ValueError):  # somebody else's node
            seen = DirectoryNode.read(path, data, stat)
            without_values = {key: replace(node, value=None) for key, node in nodes.items()}
            self._seen_last.keep(DirectoryView(seen, without_values, complete=True))

    def look(
        self, directory: str, keys: Collection[str], deadline: float | None = None
    ) -> Snapshot:
        """See RecordStore.look(). All is of one moment if the directory did not change between."""
        client, path = self._client(), self._path(directory)
        paths = {f"{path}/{escaped(key)}": key for key in keys}
        reads = [GetData(each, None) for each in paths]
        while True:
            requests = [Sync(path), Stat(path, None), *reads, Stat(path, None)]
            _, first, *replies, last = client.ask(requests, deadline)
            before, after = (
                revision_of(stat) if (stat := client.found(reply)) else 0 for reply in (first, last)
            )
            if before == after:
                break
        nodes = records_at(client, dict(zip(paths, map(client.found, replies), strict=True)))
        records = (node.record(paths[each]) for each, node in nodes.items() if node is not None)
        return Snapshot.of(directory, before, records)

    def get(self, directory: str, key: str, deadline: float | None = None) -> Record | None:
        client, path = self._client(), f"{self._path(directory)}/{escaped(key)}"
        _, read = client.ask([Sync(path), GetData(path, None)], deadline)
        node = records_at(client, {path: client.found(read)})[path]
        return None if node is None else node.record(key)


def records_at(client: Client, found: Mapping[str, Any]) -> dict[str, RecordNode | None]:
    """Return what nodes say that were read, by path; None for those that are not there."""
    try:
        return {
            path: RecordNode.read(path, *node) if node else None for path, node in found.items()
        }
    except ValueError as error:
        raise client.unavailable(str(error)) from error


def _was_there(now: RecordNode, before: RecordNode | None, listed_at: int) -> bool:
    """Return whether a record was the same when the directory was listed.

    ``listed_at`` is the last change of the directory by then. Only what was changed by hand, past
    this store, may be newer than that.
    """
    return now.revision <= listed_at or (before is not None and before.revision == now.revision)


def _revision(stat: Any) -> int:
    """Return the revision of a directory from the stat of its node; None if it is not there."""
    return 0 if stat is None else revision_of(stat)
