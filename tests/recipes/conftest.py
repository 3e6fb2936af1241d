"""Backends, and those who take seats in them."""

from pathlib import Path

import pytest

from distlock import locks
from distlock.backends import background
from distlock.recipes import Queue
from distlock.records import shared_backend
from tests import kinds
from tests.contract.actor_process import ProcessActor
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually
from tests.kinds import ONE_LEASE, ONE_PROCESS, SESSION, one_after_the_other
from tests.recipes.every_kind import RENEWED, SHORT, SHORTEST
from tests.recipes.standing import stand  # noqa: F401 - a fixture
from tests.recipes.taking import be_patient
from tests.recipes.wrapping import Wrapped

#: seconds; a server that does not answer is told of after that, and not if it only stands still
ANSWER_LIMIT = 2.5
#: seconds; less than tests wait for what must come, and more than a machine stands still
UNHURRIED = 15.0

configured = kinds.configured
pytest_pyfunc_call = kinds.pytest_pyfunc_call


def pytest_collection_modifyitems(items):
    one_after_the_other(items, Path(__file__).parent, mark="brief")


def pytest_configure(config):
    config.addinivalue_line("markers", "shared: for backends that several processes share")
    config.addinivalue_line("markers", "not_on(*kinds): there is nothing to try on these")
    config.addinivalue_line("markers", "faults: left out every day on some kinds of backends")
    config.addinivalue_line("markers", "brief: the leases of the backend are as short as they can")
    config.addinivalue_line("markers", "eager: long leases, too, are renewed at short intervals")


@pytest.fixture(scope="package", autouse=True)
def late_answers():
    """No backend is taken for one that does not answer, because the machine stands still."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background, "LAST_ANSWER", UNHURRIED)
        yield


@pytest.fixture
def soon_given_up(monkeypatch):
    """A backend that does not answer is given up soon after the caller's time is over."""
    monkeypatch.setattr(background, "LAST_ANSWER", 0.1)


@pytest.fixture
def only_hints(monkeypatch):
    """Nobody looks by itself meanwhile, but those who are told that there is something to see."""
    monkeypatch.setattr(shared_backend.SharedBackend, "pause", UNHURRIED)


@pytest.fixture
def nobody_is_passed_over(monkeypatch):
    """Who could have its seats keeps its place, however long it takes to take them."""
    monkeypatch.setattr(shared_backend, "_PATIENCE", 2 * PATIENCE)


@pytest.fixture
def reported_often(monkeypatch):
    """The reports of a Progress of this process are written soon."""
    monkeypatch.setattr("distlock.recipes.progress._INTERVAL", 0.02)
    monkeypatch.setattr("distlock.recipes.progress._EARLIEST", 0.01)


@pytest.fixture
def kind():
    """The kind of backend, as ``backend_settings`` calls it."""


@pytest.fixture
def short(kind):
    """The length of the shortest lease, in seconds."""
    return SHORTEST.get(kind, SHORT)


@pytest.fixture
def using(kind, short, request, backend_settings, configured):
    """The alias of the backend under test."""
    brief = request.node.get_closest_marker("brief")
    if kind in ONE_LEASE:
        wanted = {"OPTIONS": {"session_timeout": short if brief else SESSION}}
    else:
        wanted = {"LEASE": short, "RENEW": RENEWED} if brief else {}
        if request.node.get_closest_marker("eager"):
            wanted = {"LEASE": 2 * PATIENCE, "RENEW": RENEWED}
    configured(backend_settings(kind, **wanted))
    yield "default"
    if kind in ONE_PROCESS:
        locks.close_all()  # its locks end with it


@pytest.fixture
def long_leases(kind, using, settings):
    """``long_leases()``: from now on those of this process are long; its children keep theirs."""

    def lengthen():
        ((alias, entry),) = settings.DISTLOCK.items()
        if kind in ONE_LEASE:
            changed = {"OPTIONS": {**entry["OPTIONS"], "session_timeout": SESSION}}
        else:
            changed = {"LEASE": 2 * PATIENCE}
        settings.DISTLOCK = {alias: {**entry, **changed}}

    return lengthen


@pytest.fixture
def actor(actor):
    """``actor("thread")``: see the fixture of this name for all tests; processes are patient."""

    def make(what="thread", **options):
        new = actor(what, **options)
        if isinstance(new, ProcessActor):
            new.call(be_patient).result(PATIENCE)
        return new

    return make


@pytest.fixture
def other(kind):
    """What an actor is that is another process, where there can be one."""
    return "thread" if kind in ONE_PROCESS else "process"


@pytest.fixture
def brief(backend_settings, settings):
    """A backend in this process whose leases are short."""
    settings.DISTLOCK = backend_settings("local", LEASE=SHORT, RENEW=RENEWED)
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def eager(backend_settings, settings):
    """A backend in this process whose leases are long, and whose losses are seen soon."""
    settings.DISTLOCK = backend_settings("local", LEASE=2 * PATIENCE, RENEW=RENEWED)
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def wrapped(monkeypatch):
    """``wrapped("read")``: the calls of a method of the store."""
    return lambda method: Wrapped(monkeypatch, method)


@pytest.fixture
def group_requests(wrapped, name):
    """``group_requests()``: how many there were for the group since the last call, by method."""
    methods = {method: wrapped(method) for method in ("read", "look", "peek", "apply")}

    def count():
        counted = {
            method: len([call for call in one.calls if call[0] == f"group:{name}"])
            for method, one in methods.items()
        }
        for one in methods.values():
            one.calls.clear()
        return {method: number for method, number in counted.items() if number}

    return count


@pytest.fixture
def letters(using, name):
    """A queue without a bound."""
    return Queue(name, using=using)


@pytest.fixture
def served(kind):
    """Whether there is a server."""
    return kind not in {*ONE_PROCESS, "sqlite"}


@pytest.fixture
def proxy(kind, served, backend_settings, proxied, settings):
    """The network before the server, None where there is none."""
    if not served:
        yield None
        return
    options = {} if kind == "zookeeper" else {"timeout": ANSWER_LIMIT}
    settings.DISTLOCK = backend_settings(kind, OPTIONS=options)
    proxy = proxied(kind)
    if kind == "zookeeper":
        (entry,) = settings.DISTLOCK.values()
        settings.DISTLOCK = {"default": {**entry, "LOCATION": f"{proxy.host}:{proxy.port}"}}
    yield proxy
    proxy.heal()
    eventually(
        lambda: all(one.shared is None or not one.shared.cleanup.pending for one in locks.made())
    )
    eventually(cleaned_up)
    locks.close_all()
