"""The same tests for the record store of every kind of backend."""

from pathlib import Path

import pytest
from django.test import override_settings

from distlock import locks
from tests.contract.actor_process import actors

#: the kinds of backends that have a store
KINDS = [
    "local",
    "sqlite",
    "mariadb",
    "postgresql",
    "zookeeper",
    "etcd",
]
#: kinds whose records exist within one process only
ONE_PROCESS = {"local"}
#: kinds without a server
FILES = {"sqlite"}
#: the shortest session of each kind, in seconds
SHORTEST = {"local": 0.5, "zookeeper": 3.0, "etcd": 2.0}
SHORT = 1.0


def pytest_configure(config):
    for line in [
        "shared: for stores that several processes share",
        "served: for stores behind a server",
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
    slow = [] if marked("lengthy") is None else [pytest.mark.slow]
    metafunc.parametrize(
        "kind",
        [
            pytest.param(kind, marks=[] if kind in ONE_PROCESS else slow)
            for kind in KINDS
            if kind not in left_out
        ],
    )


def pytest_collection_modifyitems(items):
    """Run all tests of one kind before those of the next, on the same sessions."""
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(here)]
    chosen = sorted((items[place] for place in places), key=_kind_of)
    for place, item in zip(places, chosen, strict=True):
        items[place] = item


def _kind_of(item):
    spec = getattr(item, "callspec", None)
    kind = spec.params.get("kind") if spec else None
    return KINDS.index(kind) if kind in KINDS else -1


@pytest.fixture
def kind():
    """The kind of backend, as ``backend_settings`` calls it."""


@pytest.fixture(scope="package")
def configured():
    """``configured(DISTLOCK)``: let this be the setting until another is asked for."""
    kept = []

    def configure(wanted):
        if not kept or kept[0].options["DISTLOCK"] != wanted:
            while kept:
                kept.pop().disable()
            kept.append(override_settings(DISTLOCK=wanted))
            kept[0].enable()

    yield configure
    while kept:
        kept.pop().disable()


@pytest.fixture
def using(kind, backend_settings, configured):
    """The alias of the backend under test."""
    configured(backend_settings(kind))
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
def actor(using, loop, processes):
    """``actor("thread")``: who does something at the same time; see actors()."""
    with actors(loop, processes) as make:
        yield make


@pytest.fixture
def others(kind, actor):
    """``others(n)``: so many clients; processes where these share the store, else threads."""
    what = "thread" if kind in ONE_PROCESS else "process"
    return lambda number: [actor(what) for _ in range(number)]
