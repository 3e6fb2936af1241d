"""The same tests for every backend, with threads, tasks and processes as owners."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings

from distlock import NotSupported, locks
from tests.contract.actor_process import actors
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually

KINDS = ["local", "sqlite", "mariadb", "postgresql", "zookeeper", "etcd"]
#: kinds whose locks exist within one process only
ONE_PROCESS = {"local"}
SHARED = [kind for kind in KINDS if kind not in ONE_PROCESS]

#: kinds whose leases have one length, which no lock can change
ONE_LEASE = {"zookeeper"}

#: kinds whose shortest lease takes long to end, and the others
LONG_LEASES = {"etcd"}
BRISK = [kind for kind in KINDS if kind not in LONG_LEASES]

#: seconds; ZooKeeper's locks last as long as their session, which is to survive a busy machine
SESSION = 8
#: seconds between the renewals of a lease of any length, in tests that are ``eager`` to see one
EAGER = 0.2

SINGLE = [("thread",), ("task",)]
PAIRS = [("thread", "thread"), ("task", "task"), ("thread", "task")]
PAIRS_OF_PROCESSES = [("thread", "process"), ("task", "process")]


def pytest_configure(config):
    config.addinivalue_line("markers", "shared: for backends that several processes share")
    config.addinivalue_line("markers", "eager: long leases, too, are renewed at short intervals")
    config.addinivalue_line("markers", "essential: waits every day for the end of a long lease")


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


def pytest_collection_modifyitems(items):
    """Run all tests of one kind of backend before those of the next, on the same sessions."""
    here = str(Path(__file__).parent)
    places = [place for place, item in enumerate(items) if str(item.path).startswith(here)]
    chosen = sorted((items[place] for place in places), key=_kind_of)
    for place, item in zip(places, chosen, strict=True):
        items[place] = item


def _kind_of(item):
    spec = getattr(item, "callspec", None)
    return KINDS.index(spec.params["kind"]) if spec and "kind" in spec.params else -1


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Where leases have one length, all there is to say of another length is that it is refused.

    What those locks do when a lease ends is told by the tests of their backend.
    """
    spec = getattr(pyfuncitem, "callspec", None)
    try:
        return (yield)
    except NotSupported as error:
        if spec and spec.params.get("kind") in ONE_LEASE and str(error).startswith("lease="):
            return True
        raise


@pytest.fixture
def kind():
    """The kind of backend, as ``backend_settings`` calls it."""


@pytest.fixture
def roles():
    """What the actors of the test are."""


@pytest.fixture(scope="package")
def configured():
    """``configured(DISTLOCK)``: let this be the setting until another is asked for."""
    with ExitStack() as after:

        def configure(wanted):
            if getattr(settings, "DISTLOCK", None) != wanted:
                after.close()
                after.enter_context(override_settings(DISTLOCK=wanted))

        yield configure


@pytest.fixture
def using(kind, request, backend_settings, configured):
    """The alias of the backend under test."""
    wanted = {"OPTIONS": {"session_timeout": SESSION}} if kind == "zookeeper" else {}
    if request.node.get_closest_marker("eager") and kind not in ONE_LEASE:
        wanted |= {"LEASE": 2 * PATIENCE, "RENEW": EAGER}
    configured(backend_settings(kind, **wanted))
    yield "default"
    if kind in ONE_PROCESS:
        locks.close_all()  # its locks end with it


@pytest.fixture
def backend(using):
    """The backend under test."""
    return locks[using]


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
def actor(using, loop, processes):
    """``actor("thread")``: an actor; see actors()."""
    with actors(loop, processes) as make:
        yield make


@pytest.fixture
def first(actor, roles):
    """Who takes the lock first."""
    return actor(roles[0])


@pytest.fixture
def second(actor, roles):
    """Who wants it too."""
    return actor(roles[1])


@pytest.fixture
def at_once(kind, roles):
    """``at_once(condition)``: its value as soon as anyone can know of what was done before.

    ZooKeeper is told of a young hold's end without waiting for the answer; a request that another
    process sends meanwhile may come first.
    """
    late = kind == "zookeeper" and "process" in roles
    return eventually if late else lambda condition: condition()


@pytest.fixture
def third(actor):
    """A third one."""
    return actor("thread")


@pytest.fixture
def fourth(actor):
    """A fourth."""
    return actor("thread")
