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
import os
import re
from dataclasses import dataclass, field
from typing import Any

from distlock.backends.store import Record
from distlock.backends.zookeeper.tree import escaped, unescaped

#: The node of all directories. An escape has hexadecimal digits, so this is nobody's name.
RECORDS = "%records"

_MADE = "%made-"
_DIRECTORY = re.compile(rb"([0-9a-f]{32}) ([0-9a-f]{32})")


def new_nonce() -> str:
    """Return what names one change, or one directory, and no other."""
    return os.urandom(16).hex()


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
    created: int
    stat: Any

    @classmethod
    def read(cls, path: str, data: bytes, stat: Any) -> RecordNode:
        """Understand a node; ValueError if it is none of ours."""
        try:
            fields = json.loads(data)
            created = int(fields.get("created", stat.czxid))
            return cls(path, fields["value"], fields.get("session"), created, stat)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the node {path} is not a record") from error

    @property
    def revision(self) -> int:
        return int(self.stat.mzxid)

    def record(self, key: str) -> Record:
        """Return what the node stands for."""
        return Record(key, self.value, self.created, self.revision, self.session)


def record_data(text: str, session: str | None, created: int | None) -> bytes:
    """Return the data of the node of a record whose value is ``text`` in JSON.

    ``created`` is when the record was created, if the node was made later: to bind a record to a
    session, or to set it free, takes another node.
    """
    begin = "" if session is None else f'"session":{json.dumps(session)},'
    begin += "" if created is None else f'"created":{created},'
    return f'{{{begin}"value":{text}}}'.encode()
