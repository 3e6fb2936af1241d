"""A Galera cluster: MariaDB servers that are one database, each of which takes writes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

from tests.servers.debian import clock_shim, galera_library
from tests.servers.mariadb import MariaDB
from tests.servers.process import HOST, START_LIMIT, free_port


class Node(MariaDB):
    """One server of a cluster, which is reached by its own port."""

    name = "galera"

    def __init__(self, cluster: Galera, *, seconds_ahead: float = 0.0) -> None:
        """``seconds_ahead`` is by how much its clock is wrong."""
        super().__init__()
        self._cluster = cluster
        self._seconds_ahead = seconds_ahead
        self.group_port, self._ist_port, self._sst_port = free_port(), free_port(), free_port()

    @property
    def peers(self) -> list[Node]:
        return [member for member in self._cluster.members if member is not self]

    def command(self) -> list[str]:
        shim = clock_shim(self._seconds_ahead) if self._seconds_ahead else []
        first = not any(peer.running for peer in self.peers)
        command = super().command()
        if not first:  # the accounts come with the data
            command = [word for word in command if not word.startswith("--init-file")]
        members = ",".join(f"{HOST}:{one.group_port}" for one in self._cluster.members)
        return [
            *shim,
            *command,
            *(["--wsrep-new-cluster"] if first else []),
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=0",
            "--wsrep-on=ON",
            f"--wsrep-provider={galera_library()}",
            f"--wsrep-cluster-name=distlock-{self._cluster.members[0].group_port}",
            f"--wsrep-cluster-address=gcomm://{members}",
            f"--wsrep-node-name=node-{self.port}",
            f"--wsrep-node-address={HOST}:{self.group_port}",
            f"--wsrep-node-incoming-address={HOST}:{self.port}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address={HOST}:{self._sst_port}",
            "--wsrep-provider-options="
            f"gmcast.listen_addr=tcp://{HOST}:{self.group_port};"
            f"ist.recv_addr={HOST}:{self._ist_port};"
            "gcache.size=16M;pc.recovery=false",
        ]

    def answers(self) -> bool:
        """See Server.answers(); a member that is not in touch with most others answers nobody."""
        return self._status_if_served("wsrep_ready") == "ON"

    def is_cut_off(self) -> bool:
        """Return whether it says that it is not in touch with most others."""
        return self._status_if_served("wsrep_ready") == "OFF"

    def cluster_size(self) -> int:
        """Return how many members it knows of; 0 if it does not answer."""
        return int(self._status_if_served("wsrep_cluster_size") or 0)

    def _status_if_served(self, name: str) -> str | None:
        import MySQLdb

        try:
            return self.status(name)
        except MySQLdb.OperationalError:
            # A member that joins accepts connections before it serves them.
            return None

    def status(self, name: str) -> str:
        """Return one of the server's status variables."""
        ((_, value),) = self.execute(f"SHOW STATUS LIKE '{name}'")
        return str(value)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let nothing be written here for a while, so that it lags behind the others."""
        with contextlib.closing(self.connect()) as session:
            session.cursor().execute("FLUSH TABLES WITH READ LOCK")
            self._locking = session
            yield
            self.unlock()

    def unlock(self) -> None:
        """Let it catch up, within locked()."""
        self._locking.cursor().execute("UNLOCK TABLES")

    def isolate(self, isolated: bool = True) -> None:
        """Cut the server off from the other members, or let it join them again."""
        self.execute(f"SET GLOBAL wsrep_provider_options = 'gmcast.isolate={int(isolated)}'")


class Galera:
    """Three nodes by default. A context manager that leaves nothing behind."""

    def __init__(self, size: int = 3, *, seconds_ahead: Sequence[float] = ()) -> None:
        """``seconds_ahead`` says by how much the clocks of the nodes are wrong."""
        self.members: list[Node] = []
        for number in range(size):
            ahead = seconds_ahead[number] if number < len(seconds_ahead) else 0.0
            self.members.append(Node(self, seconds_ahead=ahead))

    def start(self) -> Self:
        """Start all nodes, one after the other, and return when all of them serve clients."""
        for member in self.members:
            member.start()
        self.await_size(len(self.members))
        return self

    def await_size(self, size: int) -> None:
        """Wait until all running nodes know of so many."""
        ends_at = time.monotonic() + START_LIMIT
        running = [member for member in self.members if member.running]
        while any(one.cluster_size() != size for one in running):
            if time.monotonic() > ends_at:
                raise RuntimeError(f"The cluster has not come to {size} members.")
            time.sleep(0.05)

    def heal(self) -> None:
        """Bring back every node that a test has stopped, paused or isolated."""
        for member in self.members:
            member.resume()
        for member in self.members:
            if not member.running:
                member.start()
            else:
                member.isolate(False)
        for member in self.members:
            member.await_answer()
        self.await_size(len(self.members))

    def close(self) -> None:
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):
                member.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: Any) -> None:
        self.close()
