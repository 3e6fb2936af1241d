"""ZooKeeper, one server or an ensemble."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator, Mapping

from tests.servers import ensemble
from tests.servers.debian import jar, program
from tests.servers.disks import Disk
from tests.servers.process import HOST, Server, free_port

#: Enough for tests; sessions can be as short as two ticks, and no longer than 20 unless told so.
TICK_MILLISECONDS = 200
LONGEST_SESSION_MILLISECONDS = 60_000


class ZooKeeper(Server):
    """A ``QuorumPeerMain``; alone, or ``number`` of the ``peers`` of an ensemble.

    ``properties`` are lines of ``zoo.cfg`` that differ from those below. Every
    ``containers_checked_every`` milliseconds it removes containers that have become empty; not
    while a test looks at them, unless told so. ``peers`` gives for each number of the ensemble the
    ports for followers and for elections. The disk of a ``stallable`` one can stand still.
    """

    name = "zookeeper"

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        containers_checked_every: int = 3_600_000,
        number: int = 1,
        peers: Mapping[int, tuple[int, int]] | None = None,
        stallable: bool = False,
    ) -> None:
        super().__init__()
        self._containers_checked_every = containers_checked_every
        self._number = number
        self._peers = peers or {}
        self._properties = dict(properties or {})
        self._disks = [Disk(self.folder)] if stallable else []

    @property
    def url(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def hosts(self) -> str:
        """The connection string of a client."""
        return self.url

    def install(self) -> None:
        data = self.folder / "data"
        data.mkdir()
        (data / "myid").write_text(str(self._number))
        properties = {
            "dataDir": str(data),
            "clientPort": str(self.port),
            "clientPortAddress": self.host,
            "tickTime": str(TICK_MILLISECONDS),
            "maxSessionTimeout": str(LONGEST_SESSION_MILLISECONDS),
            "initLimit": "100",
            "syncLimit": "20",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "extendedTypesEnabled": "true",
            **{
                f"server.{number}": f"{HOST}:{following}:{electing}"
                for number, (following, electing) in self._peers.items()
            },
            **self._properties,
        }
        lines = [f"{key}={value}\n" for key, value in properties.items()]
        self.write("zoo.cfg", "".join(lines))

    def command(self) -> list[str]:
        return [
            *(word for disk in self._disks for word in disk.prefix()),
            program("java"),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dzookeeper.extendedTypesEnabled=true",
            f"-Dznode.container.checkIntervalMs={self._containers_checked_every}",
            "-Djava.net.preferIPv4Stack=true",
            "-cp",
            jar("zookeeper.jar"),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.folder / "zoo.cfg"),
        ]

    def answers(self) -> bool:
        # A server that is about to start may accept a connection and then forget it.
        return "\nMode: " in self.four_letters("srvr", timeout=1)

    def leads(self) -> bool:
        """Whether it is the leader, as far as it knows."""
        return "Mode: leader" in self.four_letters("srvr")

    def stall_disk(self) -> None:
        """Let its disk keep nothing that is written until `resume_disk`."""
        (disk,) = self._disks  # it has to be made for that: see `stallable`
        disk.stall()

    def resume_disk(self) -> None:
        """Let its disk keep what has been written meanwhile, and what will be."""
        for disk in self._disks:
            disk.go_on()

    def heal(self) -> None:
        self.resume_disk()
        super().heal()

    def four_letters(self, word: str, timeout: float = 10) -> str:
        """Ask for one of ZooKeeper's reports (``srvr``, ``cons``, ``wchp``, ``dump``, …)."""
        answer = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self.host, self.port), timeout=timeout) as connection,
        ):
            connection.sendall(word.encode())
            while received := connection.recv(65536):
                answer += received
        return answer.decode()


@contextlib.contextmanager
def stalled_disks(servers: Iterable[ZooKeeper]) -> Iterator[None]:
    """Let no disk of these servers move meanwhile; what was to be written is written afterwards.

    Members of an ensemble go on answering what needs no write, and keep sessions.
    """
    servers = list(servers)
    for server in servers:
        server.stall_disk()
    try:
        yield
    finally:
        for server in servers:
            server.resume_disk()


class Ensemble(ensemble.Ensemble[ZooKeeper]):
    """Several ZooKeeper servers that are one service."""

    def __init__(
        self,
        size: int = 3,
        properties: Mapping[str, str] | None = None,
        *,
        stallable: bool = False,
    ) -> None:
        peers = {number: (free_port(), free_port()) for number in range(1, size + 1)}
        super().__init__(
            [
                ZooKeeper(properties, number=number, peers=peers, stallable=stallable)
                for number in peers
            ]
        )
