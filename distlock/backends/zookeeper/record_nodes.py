"""The nodes of records in ZooKeeper's tree: their paths, and what they say.

Below ``<root>/%records``, a name that no lock has, each directory has a node of its name, and below
that each record a node of its key. Whatever is changed in a directory, its own node is written in
the same step: so its version counts the changes.

When a directory is made it gets a child ``%made-<nonce>``, too, which it keeps until it is swept. A
change that relies on a version checks that child: a directory that was swept and made again counts
from the beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distlock.backends.store import Put, Record
from distlock.backends.zookeeper.tree import escaped, unescaped
from distlock.types.values import Unreadable, decoded

#: The node of all directories. An escape has hexadecimal digits, so this is nobody's name.
RECORDS = "%records"

#: of how many directories, and of how many records in each, SeenLast keeps something
_MOST_DIRECTORIES, _MOST_RECORDS = 100, 100

_MADE = "%made-"
#: comes before the value in the data of a record; nothing before it can be nested
_VALUE = b'"value":'
_DIRECTORY = re.compile(rb"([0-9a-f]{32}) ([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class DirectoryNode:
    """The node of a directory as it was read; ``stat`` is None if it was not there."""

    path: str
    #: the nonces of its making and of its last change
    made: str = ""
    change: str = ""
    stat: Any = None

    @classmethod
    def read(cls, path: str, data: bytes, stat: Any) -> DirectoryNode:
        """Understand a node; ValueError if it is none of ours."""
        found = _DIRECTORY.fullmatch(data or b"")
        if not found:
            raise ValueError(f"the node {path} is not a directory of records")
        return cls(path, found[1].decode(), found[2].decode(), stat)

    @property
    def revision(self) -> int:
        return 0 if self.stat is None else revision_of(self.stat)

    def record(self, key: str) -> str:
        """Return the path of a record."""
        return f"{self.path}/{escaped(key)}"


def revision_of(stat: Any) -> int:
    """Return the revision of a directory from the stat of its node.

    ``pzxid`` is when a child was made or deleted last, be it by the end of a session.
    """
    return int(max(stat.mzxid, stat.pzxid))


def directory_data(made: str, change: str) -> bytes:
    """Return the data of the node of a directory."""
    return f"{made} {change}".encode()


def mark_of(directory: str, made: str) -> str:
    """Return the path of the child that tells a directory from one made earlier."""
    return f"{directory}/{_MADE}{made}"


def is_mark(component: str) -> bool:
    """Return whether a child of a directory is that child, and no record."""
    return component.startswith(_MADE)


def address_of(path: str) -> tuple[str, str]:
    """Return the directory and the key of the record at a path."""
    above, _, key = path.rpartition("/")
    return unescaped(above.rpartition("/")[2]), unescaped(key)


@dataclass(frozen=True, slots=True)
class RecordNode:
    """The node of a record as it was read."""

    path: str
    value: Any = field(compare=False)
    session: str | None
    #: when the record was created, which may be before the node was made
    created: int
    czxid: int
    revision: int
    #: the session with the servers that the node is bound to, 0 for none
    owner: int

    @classmethod
    def read(cls, path: str, data: bytes, stat: Any) -> RecordNode:
        """Understand a node; ValueError if it is none of ours."""
        try:
            fields = decoded(data)
            if isinstance(fields, Unreadable):
                head, _, text = data.partition(_VALUE)
                fields = json.loads(head + _VALUE + b"null}")
                fields["value"] = decoded(text.removesuffix(b"}"))
            value, session = fields["value"], fields.get("session")
            created = int(fields.get("created", stat.czxid))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the node {path} is not a record") from error
        return cls(path, value, session, created, stat.czxid, stat.mzxid, stat.ephemeralOwner)

    def record(self, key: str) -> Record:
        """Return what the node stands for."""
        return Record(key, self.value, self.created, self.revision, self.session)


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """A directory and records in it, as they were read.

    Each change writes the node of the directory. So if that is unchanged when another change is
    made, so are the records, but for those that a session has taken along.
    """

    directory: DirectoryNode
    records: Mapping[str, RecordNode]
    #: whether these are all of its records
    complete: bool = False


class SeenLast:
    """What this process has seen last of some directories, by their paths; without the values.

    It may be out of date. Who starts from it saves reading first, and finds out.
    """

    def __init__(self) -> None:
        #: changed in single atomic steps
        self._seen: dict[str, DirectoryView] = {}

    def get(self, path: str) -> DirectoryView | None:
        """Return what was kept."""
        return self._seen.get(path)

    def keep(self, seen: DirectoryView) -> None:
        """Keep it, if it is complete and not large; else keep nothing of this directory."""
        if not seen.complete or len(seen.records) > _MOST_RECORDS:
            self._seen.pop(seen.directory.path, None)
            return
        if len(self._seen) >= _MOST_DIRECTORIES:
            self._seen.clear()
        self._seen[seen.directory.path] = seen


def record_data(put: Put, created: int | None) -> bytes:
    """Return the data of the node of a record that is put.

    ``created`` is when the record was created, if the node was made later: to bind a record to a
    session, or to set it free, takes another node.
    """
    begin = "" if put.session is None else f'"session":{json.dumps(put.session)},'
    begin += "" if created is None else f'"created":{created},'
    return f'{{{begin}"value":{put.text}}}'.encode()
