"""The servers, databases and child processes that tests ask for."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from tests.children import Child
from tests.databases import ALIASES, SQLite, migrate, moved, publish
from tests.nodes import ROOT, Nodes
from tests.servers.etcd import Etcd, EtcdEnsemble
from tests.servers.mariadb import MariaDB
from tests.servers.postgresql import PostgreSQL
from tests.servers.process import Server
from tests.servers.proxy import Proxy
from tests.servers.redis import Redis
from tests.servers.zookeeper import ZooKeeper

pytest_plugins = ["tests.fixtures"]

_TESTS = Path(__file__).parent
#: what they try is the work of programs and servers, or of drivers: the same on every Python
_ONCE = [
    _TESTS / name
    for name in [
        "admin/browser",
        "celery",
        "commands",
        "database",
        "etcd",
        "faults",
        "harness",
        "hosts",
        "queue",
        "readme",
        "renewal",
        "supervisor",
        "zookeeper",
    ]
]
#: kinds of backends behind which there is a server: their contract is tried on one Python
_SERVERS = {"mariadb", "postgresql", "zookeeper", "etcd"}

_GOLDEN_RATIO = (5**0.5 + 1) / 2

_DATABASE_BACKEND = "distlock.backends.database.DatabaseBackend"
_LOCAL_BACKEND = "distlock.backends.local.LocalBackend"
_ZOOKEEPER_BACKEND = "distlock.backends.zookeeper.ZooKeeperBackend"
_ETCD_BACKEND = "distlock.backends.etcd.EtcdBackend"
#: the keys of locks of tests that have no prefix of their own begin with this
_PREFIX = "/distlock/"
#: where clients are led meanwhile that would go to the server of this kind
_led_to: dict[str, str] = {}

_HANDLERS: dict[int, Callable[..., object]] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: lambda *_: None,
    signal.SIGHUP: lambda *_: None,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="0:1", help="FROM:TO: this part of the tests, 0:0.5 half")


def pytest_configure() -> None:
    # What a shell runs in the background ignores Ctrl-C, and so would every process begun here:
    # only what is ignored is inherited.
    for number, handler in _HANDLERS.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    if _takes_long(item):
        item.add_marker("slow")
    if _is_the_same_on_every_python(item):
        item.add_marker("once")


@pytest.hookimpl(tryfirst=True)  # before -m looks for the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the tests out to the runs on several Pythons: every day each test runs on one of them.

    A test that is not `once` runs on the others, too, but there it is `slow`.
    """
    begin, end = map(float, config.getoption("share").split(":"))
    slow = {item for item in items if item.get_closest_marker("slow")}
    others = _dealt_to_others(slow, begin, end)
    others |= _dealt_to_others({item for item in items if item not in slow}, begin, end)
    left = {item for item in others if item in slow or item.get_closest_marker("once")}
    for item in others - left:
        item.add_marker("slow")
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def pytest_collection_finish() -> None:
    # The tests themselves are never garbage: those that look for some need not look at them.
    gc.collect()
    gc.freeze()


def _dealt_to_others(items: set[pytest.Item], begin: float, end: float) -> set[pytest.Item]:
    """Return those of the tests that are not in this share.

    They are dealt out group by group, because the tests of a group share what takes long to start;
    by size, so that no share gets all that is slow about the same thing. The multiples of the
    golden ratio are spread evenly between two whole numbers, however many there are.
    """
    groups = {group: place for place, group in enumerate(sorted(set(map(_group, items))))}
    return {item for item in items if not begin <= groups[_group(item)] * _GOLDEN_RATIO % 1.0 < end}


def _takes_long(item: pytest.Item) -> bool:
    """Return whether it runs every day, but not on its kind of backend."""
    marker = item.get_closest_marker("every_day_on")
    if marker is not None and not _kind(item):
        raise pytest.UsageError(f"{item.nodeid} has no parameter `kind` for every_day_on()")
    return marker is not None and _kind(item) not in marker.args


def _is_the_same_on_every_python(item: pytest.Item) -> bool:
    return (
        _is_in_a_folder_of_once(item.path)
        or item.get_closest_marker("slow") is not None
        or _kind(item) in _SERVERS
    )


@cache
def _is_in_a_folder_of_once(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _ONCE)


def _group(item: pytest.Item) -> tuple[int, str, str]:
    """Return what the tests of a file and a kind of backend have in common; it sorts by size."""
    return _size(item.path), str(item.path), _kind(item)


@cache
def _size(path: Path) -> int:
    return path.stat().st_size


def _kind(item: pytest.Item) -> str:
    spec = getattr(item, "callspec", None)
    return str(spec.params.get("kind", "")) if spec else ""


@pytest.fixture(scope="session", autouse=True)
def committed_tables(django_db_blocker: Any) -> Iterator[None]:
    """Let every test use the databases: locks must be seen by other sessions."""
    with django_db_blocker.unblock():
        yield


@pytest.fixture(scope="session")
def sqlite() -> Iterator[SQLite]:
    yield from _ready("sqlite", SQLite())


@pytest.fixture(scope="session")
def memory() -> Iterator[SQLite]:
    yield from _ready("memory", SQLite("file:memorydb_memory?mode=memory&cache=shared"))


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    with MariaDB() as server:
        yield from _ready("mariadb", server)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    with PostgreSQL() as server:
        yield from _ready("postgresql", server)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper(stallable=True) as server:
        yield server


@pytest.fixture(scope="session")
def nodes(zookeeper: ZooKeeper) -> Iterator[Nodes]:
    """What is in ``zookeeper``."""
    nodes = Nodes(zookeeper.hosts)
    yield nodes
    nodes.close()


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    with Etcd() as server:
        yield server


@pytest.fixture(scope="session")
def etcd_ensemble() -> Iterator[EtcdEnsemble]:
    """Three servers that are one service."""
    with EtcdEnsemble(3) as servers:
        yield servers


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """``server(kind)``: the running server; brought back after the test if it is down by then."""
    with ExitStack() as after:

        def get(kind: str) -> Any:
            found = request.getfixturevalue(kind)
            if kind in ALIASES:  # the next test's queries must not find it lost
                after.callback(connections[ALIASES[kind]].close)
            after.callback(found.heal)
            return found

        yield get


TABLES_OF_RECORDS = (
    "database_lock_record",
    "database_lock_session",
    "database_lock_directory",
)


@pytest.fixture
def backend_settings(request: pytest.FixtureRequest) -> Callable[..., dict[str, Any]]:
    """``backend_settings(kind)``: a ``DISTLOCK`` of that kind, without locks and records."""
    cleared: set[str] = set()

    def make(
        kind: str, *, alias: str = "default", OPTIONS: dict[str, Any] | None = None, **entry: Any
    ) -> dict[str, Any]:
        options = dict(OPTIONS or {})
        backend = _LOCAL_BACKEND
        if kind in ALIASES:
            database = request.getfixturevalue(kind)
            # Once in a test: some make a second backend for the records of the first one.
            tables = ["database_lock", *(() if kind in cleared else TABLES_OF_RECORDS)]
            database.empty(tables)
            cleared.add(kind)
            backend = _DATABASE_BACKEND
            options = {"database": ALIASES[kind], "idle": 60, **options}
        elif kind == "zookeeper":
            request.getfixturevalue("nodes").clear()
            backend = _ZOOKEEPER_BACKEND
            entry = {"LOCATION": request.getfixturevalue(kind).hosts, **entry}
            options = {"root": ROOT, "session_timeout": 3, **options}
        elif kind == "etcd":
            request.getfixturevalue(kind).delete(_PREFIX)
            backend = _ETCD_BACKEND
            entry = {"LOCATION": _led_to.get(kind) or request.getfixturevalue(kind).hosts, **entry}
            options = {"prefix": _PREFIX, **options}
        elif kind != "local":
            raise ValueError(f"There is no kind of backend called {kind!r}.")
        return {alias: {"BACKEND": backend, "OPTIONS": options, **entry}}

    return make


@pytest.fixture
def proxied(server: Callable[[str], Any], settings: Any) -> Iterator[Callable[[str], Proxy]]:
    """``proxied(kind)``: put a network that can break before a server, until the test ends."""
    from distlock.conf import locks

    with ExitStack() as after:

        def make(kind: str) -> Proxy:
            proxy = after.enter_context(Proxy(server(kind).port))
            if kind in ALIASES:
                locks.close_all()  # no session may go past the proxy
                after.callback(locks.close_all)
                after.enter_context(moved(ALIASES[kind], proxy.port))
            elif kind == "etcd":
                _led_to[kind] = f"{proxy.host}:{proxy.port}"
                after.callback(_led_to.clear)
                settings.DISTLOCK = {
                    alias: {**entry, "LOCATION": _led_to[kind]}
                    if entry["BACKEND"] == _ETCD_BACKEND
                    else entry
                    for alias, entry in getattr(settings, "DISTLOCK", {}).items()
                }
            return proxy

        yield make


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """``child(function, *args)``: run a function in a process that ends with the test."""
    with ExitStack() as after:

        def start(function: str | Callable[..., Any], *args: Any, **options: Any) -> Child:
            process = Child(function, *args, **options)
            after.callback(process.close)
            return process

        yield start


@pytest.fixture(scope="session")
def django_db_setup(request: pytest.FixtureRequest, committed_tables: None) -> None:
    """For ``django_db`` marks and test cases: the same databases, those that the run needs."""
    kinds = {alias: kind for kind, alias in ALIASES.items()}
    for alias in _aliases_of(request.session.items):
        request.getfixturevalue(kinds[alias])


def _aliases_of(items: list[pytest.Item]) -> list[str]:
    wanted = {"default"}
    for item in items:
        marker = item.get_closest_marker("django_db")
        databases = marker.kwargs.get("databases") if marker else None
        databases = databases or getattr(getattr(item, "cls", None), "databases", None) or ()
        wanted.update(ALIASES.values() if databases == "__all__" else databases)
    return sorted(wanted)


def _ready(kind: str, database: Any) -> Iterator[Any]:
    alias = ALIASES[kind]
    connections[alias].close()
    del connections[alias]  # a connection made before there was a database
    publish(alias, database.django())
    migrate(alias)
    yield database
    if not isinstance(database, Server):
        database.close()
