"""A signal handler may use recipes at any moment of a recipe: it works, or is refused at once."""

import itertools
from contextlib import suppress
from queue import Empty

import pytest

from distlock import Lock, LockError, ReentrantCall
from distlock.recipes import (
    Barrier,
    Config,
    Election,
    Event,
    Group,
    MultiLock,
    Names,
    Progress,
    Queue,
    RWLock,
    Semaphore,
)
from tests.contract.actors import PATIENCE
from tests.core.interrupting import at_moment, moments_of
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401

pytestmark = pytest.mark.not_on(
    "sqlite", "mariadb", "postgresql", "zookeeper", "etcd"
)  # tests/contract/test_handlers.py has the others


def seats(name):
    with Semaphore(name, 2, timeout=PATIENCE):
        pass


def sides(name):
    lock = RWLock(name, timeout=PATIENCE)
    with lock.writer() as writer:
        writer.downgrade()
    with lock.reader():
        pass


def several(name):
    with MultiLock(f"{name}-a", f"{name}-b", timeout=PATIENCE):
        pass


def election(name):
    with Election(name, "one"):
        pass


def group(name):
    with Group(name, "one") as joined:
        joined.update({"at": 1})
        joined.members()


def queue(name):
    items = Queue(name)
    items.put(name)
    with items.get(timeout=PATIENCE):
        pass
    with suppress(Empty):
        items.get(blocking=False).nack()


def barrier(name):
    Barrier(name, 1).wait(timeout=PATIENCE)


def event(name):
    agreed = Event(name)
    agreed.set()
    agreed.wait(PATIENCE)
    agreed.clear()


def config(name):
    Config(name).set({"at": 1})
    Config(name).get()


def names(name):
    with Names("services").register(name, "here"):
        Names("services").resolve(name)


def progress(name):
    with Progress(name, total=2) as work:
        work.advance()
    Progress.get(name)


RECIPES = [
    seats,
    sides,
    several,
    election,
    group,
    queue,
    barrier,
    event,
    config,
    names,
    progress,
]
#: Moments of each at which a handler is called.
MOMENTS = [50, pytest.param(10**6, marks=pytest.mark.slow, id="all")]


@pytest.mark.usefixtures("using")
@pytest.mark.parametrize("interrupted", RECIPES)
@pytest.mark.parametrize("most", MOMENTS)
def test_what_was_interrupted_goes_on(interrupted, most, name):
    """The handler uses all recipes, one after the other."""
    came = {"worked": 0, "refused": 0}
    turns = itertools.cycle(RECIPES)

    def act(frame):
        recipe = next(turns)
        try:
            recipe(f"{name}-handler-{recipe.__name__}")
            came["worked"] += 1
        except ReentrantCall:
            came["refused"] += 1

    for recipe in RECIPES:
        recipe(f"{name}-handler-{recipe.__name__}")
    every = 1 + moments_of(lambda: interrupted(f"{name}-first")) // most
    for moment in itertools.count(1, every):
        _, acted = at_moment(lambda: interrupted(name), moment, act)
        if not acted:
            break
    assert came["refused"] > 5


def lease_of(name):
    items = Queue(name)
    items.put(name)
    return items.get(timeout=PATIENCE)


#: what is held, by how it is left
HELD = {
    "release": lambda name: Semaphore(name, 1),
    "resign": lambda name: Election(name, "one"),
    "finish": lambda name: Progress(name),
    "leave": lambda name: Group(name, "one"),
    "ack": lease_of,
    "unregister": lambda name: Names(name).register("service", "here"),
}


class Stop(Exception):
    """Raised by a handler that ends the program."""


@pytest.mark.usefixtures("using")
@pytest.mark.parametrize("leave", HELD)
def test_a_handler_may_leave_what_the_program_has(leave, name):
    """It is left, or refused, and then `with` leaves it as the program ends."""
    held, lock = {}, Lock(name)

    def use(number):
        held["one"] = HELD[leave](f"{name}-{number}")
        with held["one"], lock:
            pass

    def act(frame):
        if one := held.get("one"):
            getattr(one, leave)()
        raise Stop

    for moment in itertools.count(1, 5):
        held.clear()
        try:
            _, acted = at_moment(lambda: use(moment), moment, act)  # noqa: B023
        except (Stop, ReentrantCall, LockError):
            acted = True
        while lock.held:  # as after Ctrl-C between the acquire and the body
            lock.release()
        with suppress(LockError, KeyError):
            getattr(held["one"], leave)()
        if not acted:
            break
    assert moment > 50
    assert not lock.locked()
