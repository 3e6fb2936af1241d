"""Every lock that is compared: how it is connected and used, as its documentation advises.

Each of these yields a Peer in the process that works with it; nothing is imported before.
"""

from __future__ import annotations

import glob
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

NAME = "benchmark"
#: Seconds that a lock with a time limit lasts: distlock's own lease.
LEASE = 30
JARS = ("curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute")


class Peer(NamedTuple):
    """``hold()`` waits for the lock; ``attempt()`` does not, and tells whether it had it."""

    hold: Callable[[], AbstractContextManager[Any]]
    attempt: Callable[[], bool]


class LockPeer(NamedTuple):
    """A lock, its settings for the page, and what it can do; ``apps`` have tables."""

    make: Callable[[Any], AbstractContextManager[Peer]]
    settings: str
    reentrant: bool = False
    waits: bool = True
    apps: tuple[str, ...] = ()
    #: how many may be inside at once; a crowd is watched for more
    exclusive: bool = True


def of_objects(lock: Any, *, fresh: Callable[[], Any] | None = None, **without: Any) -> Peer:
    """Return a Peer of locks with ``acquire`` and ``release``; a ``fresh`` one for each hold."""

    @contextmanager
    def hold() -> Iterator[None]:
        one = fresh() if fresh else lock
        one.acquire()
        try:
            yield
        finally:
            one.release()

    def attempt() -> bool:
        one = fresh() if fresh else lock
        if not one.acquire(**(without or {"blocking": False})):
            return False
        one.release()
        return True

    return Peer(hold, attempt)


@contextmanager
def distlock(place: Any) -> Iterator[Peer]:
    place.setup()
    from distlock import Lock, locks

    def attempt() -> bool:
        lock = Lock(NAME)
        if not lock.acquire(blocking=False):
            return False
        lock.release()
        return True

    yield Peer(partial(Lock, NAME), attempt)
    locks.close_all()


@contextmanager
def of_tree(
    place: Any, make: Callable[[Any], AbstractContextManager[Any]], folder: str
) -> Iterator[Any]:
    """Make something with the distlock of another working tree; none was imported here before."""
    sys.path.insert(0, folder)
    with make(place) as made:
        yield made


@contextmanager
def pglock(place: Any) -> Iterator[Peer]:
    place.setup("pgactivity", "pglock")
    import pglock

    def attempt() -> bool:
        with pglock.advisory(NAME, timeout=0) as acquired:
            return bool(acquired)

    yield Peer(partial(pglock.advisory, NAME), attempt)


@contextmanager
def db_mutex(place: Any) -> Iterator[Peer]:
    place.setup("db_mutex")
    from db_mutex.db_mutex import db_mutex
    from db_mutex.exceptions import DBMutexError

    def attempt() -> bool:
        with suppress(DBMutexError), db_mutex(NAME):
            return True
        return False

    yield Peer(partial(db_mutex, NAME), attempt)


@contextmanager
def dlock(place: Any) -> Iterator[Peer]:
    from sqlalchemy import create_engine
    from sqlalchemy_dlock import create_sadlock

    driver = "postgresql+psycopg" if place.kind == "PostgreSQL" else "mysql+mysqldb"
    engine = create_engine(f"{driver}://{place.url}")
    with engine.connect() as connection:

        def attempt() -> bool:
            lock = create_sadlock(connection, NAME)
            if not lock.acquire(block=False):
                return False
            lock.release()
            return True

        # Without a limit it asks MariaDB for one of -1 s, which MariaDB answers with NULL.
        limit = 600 if place.kind == "MariaDB" else None
        yield Peer(lambda: create_sadlock(connection, NAME, contextual_timeout=limit), attempt)
    engine.dispose()


@contextmanager
def tooz(place: Any) -> Iterator[Peer]:
    from tooz import coordination

    address = {
        "PostgreSQL": lambda: f"postgresql://{place.url}",
        "MariaDB": lambda: f"mysql://{place.url}",
        "ZooKeeper": lambda: f"zookeeper://{place.server.hosts}",
        "etcd": lambda: f"etcd3+http://{place.server.hosts}",
        "Redis": lambda: place.server.url,
    }[place.kind]()
    coordinator = coordination.get_coordinator(address, uuid.uuid4().hex.encode())
    coordinator.start(start_heart=True)
    # A name of its own: sqlalchemy-dlock's locks are also those of GET_LOCK.
    yield of_objects(coordinator.get_lock(b"benchmark-tooz"))
    coordinator.stop()


@contextmanager
def kazoo(place: Any) -> Iterator[Peer]:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=place.server.hosts)
    client.start()
    yield of_objects(client.Lock("/benchmark-kazoo", "benchmark"))
    client.stop()
    client.close()


@contextmanager
def redis_py(place: Any) -> Iterator[Peer]:
    import redis

    client = redis.Redis.from_url(place.server.url)
    yield of_objects(None, fresh=lambda: client.lock("benchmark-redis-py", timeout=LEASE))
    client.close()


@contextmanager
def python_redis_lock(place: Any) -> Iterator[Peer]:
    import redis
    import redis_lock

    client = redis.Redis.from_url(place.server.url)
    yield of_objects(
        None,
        fresh=lambda: redis_lock.Lock(client, NAME, expire=LEASE, auto_renewal=True),
    )
    client.close()


@contextmanager
def portalocker_redis(place: Any) -> Iterator[Peer]:
    import redis
    from portalocker import AlreadyLocked, RedisLock

    client = redis.Redis.from_url(place.server.url)

    def attempt() -> bool:
        try:
            with RedisLock("benchmark-portalocker", client, fail_when_locked=True, timeout=0):
                return True
        except AlreadyLocked:
            return False

    yield Peer(lambda: RedisLock("benchmark-portalocker", client, timeout=600), attempt)


@contextmanager
def portalocker_file(place: Any) -> Iterator[Peer]:
    import portalocker

    path = f"{place.folder}/portalocker"

    def attempt() -> bool:
        flags = portalocker.LOCK_EX | portalocker.LOCK_NB
        try:
            with portalocker.Lock(path, timeout=0, fail_when_locked=True, flags=flags):
                return True
        except portalocker.AlreadyLocked:
            return False

    yield Peer(lambda: portalocker.Lock(path, timeout=600), attempt)


@contextmanager
def mithril(place: Any) -> Iterator[Peer]:
    import structlog
    from mithril import Lock
    from mithril import backends as known

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))

    if place.kind == "Redis":
        import redis

        backend = known.RedisBackend(redis.Redis.from_url(place.server.url))
    elif place.kind == "one machine":
        backend = known.FileBackend(place.folder)
    else:
        from sqlalchemy import create_engine

        where = f"sqlite:///{place.django['NAME']}.mithril"
        if place.kind == "PostgreSQL":
            where = f"postgresql+psycopg2://{place.url}"
        engine = create_engine(where)
        kind = known.PostgresBackend if place.kind == "PostgreSQL" else known.SQLiteBackend
        backend = kind(engine)

    def fresh() -> Any:
        return Lock(NAME, backend=backend, ttl=LEASE, timeout=600, auto_renewal=True)

    def attempt() -> bool:
        from mithril.exceptions import MithrilError

        lock = fresh()
        try:
            lock.acquire(blocking=False)
        except MithrilError:
            return False
        lock.release()
        return True

    yield Peer(fresh, attempt)


class CuratorProcess:
    """A Java process that acquires and releases a lock of Curator, a given number of times."""

    #: Cycles between two looks at the clock.
    STEP = 20

    def __init__(self, folder: str, arguments: list[str]) -> None:
        jars = [f"/usr/share/java/{name}.jar" for name in JARS]
        jars += glob.glob("/usr/share/java/guava.jar") + glob.glob("/usr/share/java/slf4j-nop.jar")
        if not shutil.which("javac"):
            raise ImportError("there is no javac")
        if missing := [jar for jar in jars if not Path(jar).exists()]:
            raise ImportError(f"there is no {missing[0]}")
        path = ":".join([folder, *jars])
        source = str(Path(__file__).with_name("CuratorCycles.java"))
        subprocess.run(["javac", "-cp", path, "-d", folder, source], check=True)
        self.process = subprocess.Popen(
            ["java", "-cp", path, "CuratorCycles", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, seconds: float) -> Any:
        from benchmarks.harness import Block, processor_of

        cycles, passed, used = 0, 0.0, processor_of([self.process.pid])
        while passed < seconds:
            passed += self.cycles(self.STEP)
            cycles += self.STEP
        return Block(cycles, passed, processor_of([self.process.pid]) - used)

    def cycles(self, number: int) -> float:
        """Return how many seconds so many cycles took."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(number, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline()) / 1e9


@contextmanager
def curator(place: Any, recipe: str = "lock") -> Iterator[CuratorProcess]:
    with tempfile.TemporaryDirectory() as folder:
        root = f"/benchmark-curator-{recipe}"
        java = CuratorProcess(folder, [place.server.hosts, root, recipe])
        java.cycles(1000)  # Java compiles what it has run often
        yield java
        java.process.communicate("")


_TOOZ = "`coordinator.get_lock()`, heartbeat started"
_MITHRIL = "a lock object for each hold, `ttl=30`, `auto_renewal=True`"
#: by kind of server, the peers there by name
LOCK_PEERS: dict[str, dict[str, LockPeer]] = {
    "PostgreSQL": {
        "django-pglock": LockPeer(
            pglock,
            "`pglock.advisory()` on Django's connection, of the session; nothing is written",
            reentrant=True,
            apps=("pgactivity", "pglock"),
        ),
        "sqlalchemy-dlock": LockPeer(dlock, "one connection, psycopg 3; an advisory lock"),
        "tooz": LockPeer(tooz, f"{_TOOZ}; an advisory lock over psycopg2, a connection per hold"),
        "mithril-locks": LockPeer(mithril, f"{_MITHRIL}, psycopg2"),
        "django-db-mutex": LockPeer(
            db_mutex, "the default of 30 minutes", waits=False, apps=("db_mutex",)
        ),
    },
    "MariaDB": {
        "sqlalchemy-dlock": LockPeer(dlock, "one connection, mysqlclient; `GET_LOCK`, 600 s"),
        "tooz": LockPeer(tooz, f"{_TOOZ}; `GET_LOCK` over PyMySQL"),
        "django-db-mutex": LockPeer(
            db_mutex, "the default of 30 minutes", waits=False, apps=("db_mutex",)
        ),
    },
    "SQLite": {
        "mithril-locks": LockPeer(mithril, _MITHRIL),
        "django-db-mutex": LockPeer(
            db_mutex, "the default of 30 minutes", waits=False, apps=("db_mutex",)
        ),
    },
    "ZooKeeper": {
        "kazoo": LockPeer(kazoo, "`client.Lock`, one object"),
        "tooz": LockPeer(tooz, f"{_TOOZ}; its lock is kazoo's"),
    },
    "etcd": {"tooz": LockPeer(tooz, f"{_TOOZ}; over etcd3gw")},
    "Redis": {
        "redis-py": LockPeer(redis_py, "`client.lock(timeout=30)`, no renewal; waits by polling"),
        "python-redis-lock": LockPeer(python_redis_lock, "`expire=30, auto_renewal=True`"),
        "tooz": LockPeer(tooz, f"{_TOOZ}; its lock is redis-py's"),
        "mithril-locks": LockPeer(mithril, _MITHRIL),
        "portalocker": LockPeer(portalocker_redis, "`RedisLock`, a subscription to a channel"),
    },
    "one machine": {
        "portalocker": LockPeer(portalocker_file, "`portalocker.Lock` of a file, no lease"),
        "mithril-locks": LockPeer(mithril, f"{_MITHRIL}, `FileBackend`"),
    },
}
