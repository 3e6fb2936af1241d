"""Clients of an etcd, and a look at what it is asked and keeps that goes past all of them."""

import re
import threading
import urllib.request

import pytest

from distlock import locks
from distlock.backends.etcd import watches
from distlock.backends.etcd.messages import put
from tests.contract.actor_process import actors
from tests.contract.actors import PATIENCE

BACKEND = "distlock.backends.etcd.EtcdBackend"
#: seconds; the time limit of a request, for tests that reach it
TIMEOUT = 2
#: for all others: a machine may stand still for a moment
LONG_TIMEOUT = 10


@pytest.fixture
def configure(backend_settings, settings):
    """``configure({alias: location}, option=value)``: clients, each as if in another process."""

    def make(locations=None, entry=None, **options):
        options = {"timeout": LONG_TIMEOUT, **options}
        (usual,) = backend_settings("etcd", OPTIONS=options, **(entry or {})).values()
        settings.DISTLOCK = dict.fromkeys(("default", "other", "third"), usual)
        for alias, location in (locations or {}).items():
            settings.DISTLOCK[alias] = {**usual, "LOCATION": location}
        locks.close_all()
        return "default"

    yield make
    locks.close_all()


@pytest.fixture
def using(configure):
    """The alias of the first client."""
    return configure()


@pytest.fixture
def actor(loop):
    """``actor("thread", using)``: an actor; see actors()."""
    with actors(loop) as make:
        yield make


@pytest.fixture
def new_leases(etcd):
    """``new_leases()``: the leases that are there now, and were not when the test began."""
    before = set(etcd.leases())
    return lambda: set(etcd.leases()) - before


@pytest.fixture
def metrics(etcd):
    """``metrics()``: what the server tells of itself, as text."""

    def read():
        with urllib.request.urlopen(f"{etcd.url}/metrics", timeout=10) as answer:
            return answer.read().decode()

    return read


@pytest.fixture
def requests(metrics):
    """``requests()``: how many requests of clients the server has got so far."""
    counter = re.compile(r'^grpc_server_started_total\{grpc_method="(\w+)".*\} (\S+)$', re.M)

    def count():
        return sum(float(number) for _, number in counter.findall(metrics()))

    return count


@pytest.fixture
def hintless_watches(monkeypatch):
    """The watches do not hint at what may have come before they began."""
    on_message = watches.Watches._on_message

    def without_hint(self, message, *others):
        if not message["result"].get("created"):
            return on_message(self, message, *others)

    monkeypatch.setattr(watches.Watches, "_on_message", without_hint)


@pytest.fixture
def told():
    """A callback that notes how often it was called, and whether it was."""

    class Told(threading.Event):
        times = 0

        def __call__(self):
            self.times += 1
            self.set()

    return Told()


def revision(client, key, value=""):
    return client.txn([], [put(key, value)]).revision


def followed(client, *keys):
    """Wait until keys are followed; return a revision since when nothing is missed."""
    for key in keys:
        begun = threading.Event()
        client.watches.add(key, 0, begun.set)  # it has not seen the revision with which that begins
        assert begun.wait(PATIENCE)
    return revision(client, keys[0])
