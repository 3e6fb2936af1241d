"""The same tests for every backend, with threads, tasks and processes as owners."""

from pathlib import Path

import pytest

from distlock import locks
from tests import kinds
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.kinds import KINDS, ONE_LEASE, ONE_PROCESS, SESSION, SHARED, one_after_the_other

#: kinds whose shortest lease takes long to end, and the others
LONG_LEASES = {"etcd"}
BRISK = [kind for kind in KINDS if kind not in LONG_LEASES]

#: seconds between the renewals of a lease of any length, in tests that are ``eager`` to see one
EAGER = 0.2

SINGLE = [("thread",), ("task",)]
PAIRS = [("thread", "thread"), ("task", "task"), ("thread", "task")]
PAIRS_OF_PROCESSES = [("thread", "process"), ("task", "process")]

configured = kinds.configured
pytest_pyfunc_call = kinds.pytest_pyfunc_call


def pytest_configure(config):
    config.addinivalue_line("markers", "shared: for backends that several processes share")
    config.addinivalue_line("markers", "eager: long leases, too, are renewed at short intervals")
    config.addinivalue_line("markers", "essential: waits every day for the end of a long lease")


def pytest_collection_modifyitems(items):
    one_after_the_other(items, Path(__file__).parent)


def pytest_generate_tests(metafunc):
    """Run a test on every kind of backend; with ``first`` also as a thread and as a task.

    With ``second`` they are two actors: in one process, for the kinds that live within one, else in
    two. What two actors of one process do to each other is the same on every backend, and so is
    what a task does alone; with a server in between it is left to the tests that take long. A test
    that is marked ``shared`` leaves out the kinds that live within one process.
    """
    names = metafunc.fixturenames
    if "kind" not in names:
        return
    kinds = SHARED if metafunc.definition.get_closest_marker("shared") else KINDS
    if "roles" not in names:
        essential = metafunc.definition.get_closest_marker("essential")
        metafunc.parametrize(
            "kind",
            [pytest.param(kind, marks=[] if essential else _slow(kind, names)) for kind in kinds],
        )
        return
    if "second" in names:
        metafunc.parametrize(("kind", "roles"), [*_pairs(kinds, names)])
    else:
        metafunc.parametrize(
            ("kind", "roles"),
            [_single(kind, roles, names) for kind in kinds for roles in SINGLE],
        )


def _slow(kind, names):
    """Leave it to the tests that take long to wait for the end of leases that are long.

    Tests of two actors, and those that are ``essential``, do that every day.
    """
    return [pytest.mark.slow] if kind in LONG_LEASES and "short" in names else []


def _single(kind, roles, names):
    if roles == ("task",) and kind not in ONE_PROCESS:
        return _case(kind, roles, pytest.mark.slow)
    return _case(kind, roles, *_slow(kind, names))


def _pairs(kinds, names):
    for kind in kinds:
        marks = [] if kind in ONE_PROCESS else [pytest.mark.slow]
        yield from (_case(kind, roles, *marks) for roles in PAIRS)
    for kind in SHARED:
        first, *others = PAIRS_OF_PROCESSES
        yield _case(kind, first)
        yield from (_case(kind, roles, *_slow(kind, names)) for roles in others)


def _case(kind, roles, *marks):
    return pytest.param(kind, roles, id=f"{kind}-{'+'.join(roles)}", marks=marks)


@pytest.fixture
def kind():
    """The kind of backend, as ``backend_settings`` calls it."""


@pytest.fixture
def lasting(kind):
    """What lets a backend's locks last on a busy machine, where their leases have one length."""
    return {"OPTIONS": {"session_timeout": SESSION}} if kind in ONE_LEASE else {}


@pytest.fixture
def using(kind, request, backend_settings, configured, lasting):
    """The alias of the backend under test."""
    wanted = dict(lasting)
    if request.node.get_closest_marker("eager") and kind not in ONE_LEASE:
        wanted |= {"LEASE": 2 * PATIENCE, "RENEW": EAGER}
    configured(backend_settings(kind, **wanted))
    yield "default"
    if kind in ONE_PROCESS:
        locks.close_all()  # its locks end with it


@pytest.fixture
def short(backend):
    """``short(0.3)``: the length of a lease that is to end soon, in seconds."""
    return Short(backend.capabilities.shortest_lease)


class Short:
    """Lengths of leases, none of them shorter than a backend can have."""

    def __init__(self, shortest):
        self._shortest = shortest

    def __call__(self, seconds):
        return max(seconds, self._shortest)

    def each(self, *lengths):
        """Return several, each of them once."""
        return sorted({self(seconds) for seconds in lengths})


@pytest.fixture
def at_once(kind, roles):
    """``at_once(condition)``: its value as soon as anyone can know of what was done before.

    ZooKeeper is told of a young hold's end without waiting for the answer; a request that another
    process sends meanwhile may come first.
    """
    late = kind == "zookeeper" and "process" in roles
    return eventually if late else lambda condition: condition()
