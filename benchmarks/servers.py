"""The servers of the benchmarks: how each is started, what it has used, what was asked of it."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import processes, processor_of

#: Enough sessions for 128 processes of any peer.
SESSIONS = 700
DATABASE = "distlock.backends.database.DatabaseBackend"


class Place:
    """Where a side works: a server that runs, or none."""

    kind = "none"
    #: The entry of DISTLOCK, and that of DATABASES.
    distlock: dict[str, Any] = {}
    django: dict[str, Any] = {}

    def __init__(self, server: Any = None) -> None:
        self.server = server

    def pids(self) -> list[int]:
        return self.server.pids() if self.server else []

    def processor(self) -> float:
        """Return the seconds of processor time that the server has used."""
        return processor_of(self.pids())

    @contextmanager
    def counting(self) -> Iterator[Callable[[], float] | None]:
        """Yield what tells the number of requests so far, if the server counts them."""
        yield None

    def setup(self, *apps: str, **more: Any) -> None:
        """Set Django up in this process, as a project with these apps does."""
        import django
        from django.conf import settings

        settings.configure(
            INSTALLED_APPS=["distlock", *apps],
            DATABASES={"default": self.django} if self.django else {},
            DISTLOCK={"default": self.distlock},
            USE_TZ=True,
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            **more,
        )
        django.setup()

    def migrate(self, *apps: str, **more: Any) -> None:
        """Make the tables, in a process of its own: Django is set up once in each."""

        def work() -> None:
            from django.core.management import call_command

            self.setup(*apps, **more)
            call_command("migrate", verbosity=0)

        in_child(work)


class InDatabase(Place):
    def __init__(self, server: Any, django: dict[str, Any]) -> None:
        super().__init__(server)
        self.django = django
        self.distlock = {"BACKEND": DATABASE, "OPTIONS": {"idle": 60}}

    @property
    def url(self) -> str:
        known = self.django
        address = f"{known['HOST']}:{known['PORT']}/{known['NAME']}"
        return f"{known['USER']}:{known['PASSWORD']}@{address}"


class PostgreSQLPlace(InDatabase):
    kind = "PostgreSQL"

    def processor(self) -> float:
        # The postmaster has the time of ended backends, the others have their own.
        return processor_of(self.pids())

    @contextmanager
    def counting(self) -> Iterator[Callable[[], float] | None]:
        """See Place.counting(): the server logs all statements meanwhile."""

        def switch(value: str) -> None:
            self.server.execute(f"ALTER SYSTEM SET log_statement = {value}")
            self.server.execute("SELECT pg_reload_conf()")
            time.sleep(0.3)

        switch("'all'")
        log: Path = self.server.log
        try:
            yield lambda: len(re.findall(r"LOG:  (?:statement|execute|fastpath)", log.read_text()))
        finally:
            switch("'none'")


class MariaDBPlace(InDatabase):
    kind = "MariaDB"

    @contextmanager
    def counting(self) -> Iterator[Callable[[], float] | None]:
        session = self.server.connect()

        def count() -> float:
            cursor = session.cursor()
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
            return int(cursor.fetchone()[1])

        yield count
        session.close()


class SQLitePlace(InDatabase):
    kind = "SQLite"

    def pids(self) -> list[int]:
        return []


class ZooKeeperPlace(Place):
    kind = "ZooKeeper"

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.distlock = {
            "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
            "LOCATION": server.hosts,
        }

    @contextmanager
    def counting(self) -> Iterator[Callable[[], float] | None]:
        def count() -> float:
            answer = self.server.four_letters("mntr")
            return int(re.search(r"zk_packets_received\s+(\d+)", answer)[1])  # type: ignore[index]

        yield count


class EtcdPlace(Place):
    kind = "etcd"

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.distlock = {
            "BACKEND": "distlock.backends.etcd.EtcdBackend",
            "LOCATION": server.hosts,
        }

    @contextmanager
    def counting(self) -> Iterator[Callable[[], float] | None]:
        def count() -> float:
            with urllib.request.urlopen(f"http://{self.server.hosts}/metrics") as reply:
                lines = reply.read().decode().splitlines()
            started = [line for line in lines if line.startswith("grpc_server_started_total{")]
            return sum(float(line.rpartition(" ")[2]) for line in started)

        yield count


class RedisPlace(Place):
    kind = "Redis"

    @contextmanager
    def counting(self) -> Iterator[Callable[[], float] | None]:
        import redis

        client = redis.Redis.from_url(self.server.url)
        yield lambda: client.info("stats")["total_commands_processed"]
        client.close()


class LocalPlace(Place):
    kind = "one machine"

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.distlock = {"BACKEND": "distlock.backends.local.LocalBackend"}


@contextmanager
def place(kind: str) -> Iterator[Any]:
    """Start a server of a kind; yields its Place, without any tables."""
    from tests.servers.etcd import Etcd
    from tests.servers.guard import guard
    from tests.servers.mariadb import MariaDB
    from tests.servers.postgresql import PostgreSQL
    from tests.servers.redis import Redis
    from tests.servers.zookeeper import ZooKeeper

    class ManySessions(PostgreSQL):
        def command(self) -> list[str]:
            return [*super().command(), f"--max_connections={SESSIONS}"]

    class ManySessionsToo(MariaDB):
        def command(self) -> list[str]:
            return [*super().command(), f"--max-connections={SESSIONS}"]

    if kind == "SQLite":
        name = str(guard().folder("distlock-sqlite-") / "database.sqlite3")
        yield SQLitePlace(None, {"ENGINE": "django.db.backends.sqlite3", "NAME": name})
    elif kind == "one machine":
        yield LocalPlace(str(guard().folder("distlock-files-")))
    elif kind == "PostgreSQL":
        with ManySessions() as server:
            yield PostgreSQLPlace(server, server.django())
    elif kind == "MariaDB":
        with ManySessionsToo() as server:
            yield MariaDBPlace(server, server.django())
    elif kind == "ZooKeeper":
        with ZooKeeper(properties={"tickTime": "2000"}) as server:
            yield ZooKeeperPlace(server)
    elif kind == "etcd":
        with Etcd() as server:
            yield EtcdPlace(server)
    else:
        with Redis() as server:
            yield RedisPlace(server)


def in_child(call: Callable[[], Any]) -> Any:
    """Run something in a process of its own and return what it returns."""
    ours, theirs = processes.Pipe()

    def work() -> None:
        theirs.send(call())

    process = processes.Process(target=work)
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        raise RuntimeError("a process of the benchmark has failed") from None
    finally:
        process.join()
        ours.close()
    return answer
