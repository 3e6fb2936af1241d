"""Backends, and those who take seats in them."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings

from distlock import NotSupported, locks
from tests.contract.actor_process import actors
from tests.contract.conftest import SESSION
from tests.contract.watch import cleaned_up, eventually
from tests.recipes.every_kind import KINDS, ONE_LEASE, ONE_PROCESS, SHORT, SHORTEST
from tests.recipes.standing import stand  # noqa: F401 - a fixture
from tests.recipes.wrapping import Wrapped

#: seconds; a server that does not answer is told of after that
ANSWER_LIMIT = 1


def pytest_configure(config):
    config.addinivalue_line("markers", "shared: for backends that several processes share")
    config.addinivalue_line("markers", "faults: left out every day on some kinds of backends")
    config.addinivalue_line("markers", "brief: the leases of the backend are as short as they can")


def pytest_collection_modifyitems(items):
    """Run all tests of one kind of backend before those of the next, on the same sessions."""
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(here)]
    chosen = sorted((items[place] for place in places), key=_kind_of)
    for place, item in zip(places, chosen, strict=True):
        items[place] = item


def _kind_of(item):
    spec = getattr(item, "callspec", None)
    kind = spec.params.get("kind") if spec else None
    brief = item.get_closest_marker("brief") is not None
    return (KINDS.index(kind) if kind in KINDS else -1, brief)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Where leases have one length, all there is to say of another length is that it is refused."""
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
        wanted = {"LEASE": short} if brief else {}
    configured(backend_settings(kind, **wanted))
    yield "default"
    if kind in ONE_PROCESS:
        locks.close_all()  # its locks end with it


@pytest.fixture
def backend(using):
    """The backend under test."""
    return locks[using]


@pytest.fixture
def actor(using, loop, processes):
    """``actor("thread")``: an actor; see actors()."""
    with actors(loop, processes) as make:
        yield make


@pytest.fixture
def first(actor, roles):
    """Who comes first."""
    return actor(roles[0])


@pytest.fixture
def second(actor, roles):
    """Who comes too."""
    return actor(roles[1])


@pytest.fixture
def third(actor):
    """A third one."""
    return actor("thread")


@pytest.fixture
def fourth(actor):
    """A fourth."""
    return actor("thread")


@pytest.fixture
def other(kind):
    """What an actor is that is another process, where there can be one."""
    return "thread" if kind in ONE_PROCESS else "process"


@pytest.fixture
def brief(backend_settings, settings):
    """A backend in this process whose leases are short."""
    settings.DISTLOCK = backend_settings("local", LEASE=SHORT)
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def wrapped(monkeypatch):
    """``wrapped("read")``: the calls of a method of the store."""
    return lambda method: Wrapped(monkeypatch, method)


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
