"""The same tests for the record store of every kind of backend."""

from pathlib import Path

import pytest

from distlock import locks
from tests import kinds
from tests.kinds import KINDS, ONE_LEASE, ONE_PROCESS, SESSION, one_after_the_other

#: kinds without a server
FILES = {"sqlite"}
#: kinds whose stores can move the first record of a prefix, see MoveFirst
MOVING = {"mariadb", "postgresql"}
#: the shortest session of each kind, in seconds
SHORTEST = {"local": 0.5, "zookeeper": 3.0, "etcd": 2.0}
SHORT = 1.0

configured = kinds.configured


def pytest_collection_modifyitems(items):
    one_after_the_other(items, Path(__file__).parent, mark="brief")


def pytest_configure(config):
    for line in [
        "shared: for stores that several processes share",
        "served: for stores behind a server",
        "moving: for stores that can move the first record of a prefix",
        "brief: waits for the end of a process; what ends with it is to end soon",
        "lengthy: waits for whole sessions or for servers; run every day only in memory",
    ]:
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc):
    """Run a test on every kind of store that its marks allow."""
    if "kind" not in metafunc.fixturenames:
        return
    marked = metafunc.definition.get_closest_marker
    left_out = ONE_PROCESS if marked("shared") else set()
    if marked("served"):
        left_out = ONE_PROCESS | FILES
    if marked("moving"):
        left_out = {*KINDS} - MOVING
    slow = [] if marked("lengthy") is None else [pytest.mark.slow]
    metafunc.parametrize(
        "kind",
        [
            pytest.param(kind, marks=[] if kind in ONE_PROCESS else slow)
            for kind in KINDS
            if kind not in left_out
        ],
    )


@pytest.fixture
def kind():
    """The kind of backend, as ``backend_settings`` calls it."""


@pytest.fixture
def using(kind, request, backend_settings, configured):
    """The alias of the backend under test."""
    wanted = {}
    if kind in ONE_LEASE and not request.node.get_closest_marker("brief"):
        wanted = {"OPTIONS": {"session_timeout": SESSION}}
    configured(backend_settings(kind, **wanted))
    return "default"


@pytest.fixture
def store(using):
    """The store under test."""
    return locks[using].store


@pytest.fixture
def seconds(kind):
    """The length of the shortest session."""
    return SHORTEST.get(kind, SHORT)


@pytest.fixture
def directory(name):
    """A directory that no other test uses."""
    return name


@pytest.fixture
def session(store):
    """A session that outlasts the test."""
    session = store.open_session(600)
    yield session
    store.end_session(session.id)


@pytest.fixture
def others(kind, actor):
    """``others(n)``: so many clients; processes where these share the store, else threads."""
    what = "thread" if kind in ONE_PROCESS else "process"
    return lambda number: [actor(what) for _ in range(number)]
