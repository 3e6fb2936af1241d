"""What a node in line says of its owner, for people to read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from distlock.backends.zookeeper.client import Session
from distlock.backends.zookeeper.paths import nonce_of
from distlock.types.lease import Claim, Lease, Owner


def written(claim: Claim, session: Session | None) -> bytes:
    """Return the data of the node that stands in line for ``claim``: JSON."""
    owner, timeout = claim.owner, session.timeout if session else None
    said = _said(
        owner.host, owner.pid, owner.thread, owner.key, claim.description, claim.renews, timeout
    )
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return b'{"since": "%s", %s' % (now.encode(), said)


@lru_cache(256)
def _said(
    host: str,
    pid: int,
    thread: str,
    key: str,
    description: str,
    renews: bool,
    timeout: float | None,
) -> bytes:
    said = {
        "host": host,
        "pid": pid,
        "thread": thread,
        "owner": key,
        "description": description,
        "renews": renews,
        "session_timeout": timeout,
    }
    return json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")[1:]


@dataclass(frozen=True, slots=True)
class Record:
    """A node in line, as read from the server: its data and its stat."""

    owner: Owner
    description: str
    token: int
    created_at: datetime  # by the server's clock
    renews: bool | None = None
    session_timeout: float | None = None

    @classmethod
    def read(cls, data: bytes, stat: Any) -> Record:
        """Understand a node; one whose data is not ours has an owner without a name."""
        try:
            said = json.loads(data)
            owner = Owner(
                str(said["owner"]), str(said["host"]), int(said["pid"]), str(said["thread"])
            )
            description, renews = str(said["description"]), bool(said["renews"])
            timeout = None if said["session_timeout"] is None else float(said["session_timeout"])
        except (ValueError, TypeError, KeyError):
            owner, description = Owner(f"node:{stat.czxid}", "unknown", 0, "unknown"), ""
            return cls(owner, description, stat.czxid, when(stat.ctime))
        return cls(owner, description, stat.czxid, when(stat.ctime), renews, timeout)

    def lease(self, name: str, path: str, duration: float) -> Lease:
        """Return the lease that the node stands for; its local deadline means nothing."""
        nonce = nonce_of(path.rpartition("/")[2]) or ""
        return Lease(Claim(name, self.owner, duration, self.description, nonce), self.token, 0.0)


def when(milliseconds: int) -> datetime:
    """Return a time of the server's clock."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
