"""Who is interrupted at any moment in a recipe asks again at once, and gets what is asked for."""

import itertools
import threading
from contextlib import contextmanager, suppress
from queue import Empty

import pytest

from distlock import LockLost, LockNotHeld
from distlock.locking.run_under import body_interrupter
from distlock.recipes import (
    Barrier,
    Config,
    Election,
    Event,
    Group,
    Mailbox,
    Names,
    Progress,
    Queue,
    RWLock,
    Semaphore,
)
from distlock.types.lease import Claim, Lease
from distlock.types.owners import Owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted
from tests.recipes.wrapping import is_unused


class SoftTimeLimit(Exception):
    """As Celery's: an ordinary exception, unlike Ctrl-C."""


# Each is a generator: it yields what is interrupted, and then asks again.


def seats(name):
    semaphore = Semaphore(name, 1)

    def take_and_leave():
        with semaphore:
            pass

    yield take_and_leave
    while semaphore.held:
        semaphore.release()
    assert semaphore.acquire()
    semaphore.release()
    eventually(lambda: is_unused(semaphore))


def sides(name):
    lock = RWLock(name)
    writer = lock.writer()

    def write_and_read():
        writer.acquire()
        writer.downgrade()
        writer.release()

    yield write_and_read
    with suppress(LockNotHeld):
        writer.release()
    for side in (lock.reader(), lock.writer()):
        assert side.acquire()
        side.release()


def putting(name):
    queue = Queue(name, maxsize=2)
    yield lambda: queue.put(1)
    queue.put(2, timeout=PATIENCE)
    got = []
    with suppress(Empty):
        while True:
            with queue.get(blocking=False) as delivery:
                got.append(delivery.body)
    assert got in ([1, 2], [2])


def acknowledging(name):
    queue = Mailbox(name)
    queue.put_many([1, 2])
    delivery = queue.get()
    yield delivery.ack
    if delivery.held:
        delivery.ack()
    with queue.get(timeout=PATIENCE) as following:
        assert following.body == 2
    eventually(queue.empty)


def putting_back(name):
    queue = Queue(name)
    queue.put(1)
    delivery = queue.get()
    yield delivery.nack
    if delivery.held:
        delivery.nack()
    with queue.get(timeout=PATIENCE) as again:
        assert again.body == 1


def membership(name):
    group = Group(name)

    def join_and_leave():
        group.join()
        group.leave()

    yield join_and_leave
    group.join()
    eventually(lambda: [one.token for one in group.members()] == [group.token])
    assert group.leave()


def leading(name):
    election = Election(name)
    yield lambda: election.run(lambda: None)
    if election.leading:
        election.resign()
    assert election.campaign(timeout=PATIENCE)
    election.resign()


def meeting(name):
    barrier = Barrier(name, 1)
    yield barrier.wait
    eventually(lambda: not barrier.n_waiting)
    with suppress(threading.BrokenBarrierError):
        barrier.wait(PATIENCE)
    barrier.reset()
    barrier.wait(PATIENCE)


def telling(name):
    event = Event(name)

    def tell():
        event.set()
        event.wait()
        event.clear()

    yield tell
    event.set()
    assert event.wait(PATIENCE)


def setting(name):
    config = Config(name)
    yield lambda: config.set(1)
    assert config.set(2) in (1, 2)
    assert config.get().value == 2


def registering(name):
    names, made = Names(name), []

    def register_and_free():
        made.append(names.register("desk", "here", unique=False))
        made[0].unregister()

    yield register_and_free
    with names.register("desk", "there", unique=False):
        assert "there" in [one.address for one in names.resolve_all("desk")]


def reporting(name):
    progress = Progress(name, 1)

    def work():
        with progress:
            progress.advance()

    yield work
    progress.finish("failed")
    with Progress(name, 1) as again:
        again.advance()
    report = Progress.get(name)
    assert (report.state, report.done) == ("done", 1)


RECIPES = [
    seats,
    sides,
    putting,
    acknowledging,
    putting_back,
    membership,
    leading,
    meeting,
    telling,
    setting,
    registering,
    reporting,
]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SoftTimeLimit])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_who_was_interrupted_asks_again(local, name, recipe, error, step):
    """Each time the interrupt is kept meanwhile, as a shell or a worker keeps the last error."""
    for moment in itertools.count(1, step):
        asking = recipe(f"{name}:{moment}")
        interrupt = interrupted(next(asking), moment, error)
        assert next(asking, "over") == "over"
        if interrupt is None:
            assert moment > 50, "the interrupts did not reach the code"
            return


@contextmanager
def lost_soon(waiting):
    """Lose the lock around a body as soon as that waits."""

    def lose():
        eventually(waiting)
        body.on_lost(Lease(Claim("around", Owner("o", "h", 1, "t"), 1.0), 7, 0.0))

    with body_interrupter() as body:
        threading.Thread(target=lose).start()
        yield


def test_the_loss_of_a_lock_around_it_ends_a_campaign(local, name):
    """One's own loss is not raised in a campaign: who has lost its office campaigns again."""
    leader, candidate = Election(name), Election(name)
    leader.campaign()
    with (
        pytest.raises(LockLost, match="lock 'around'"),
        lost_soon(lambda: len(leader.candidates()) == 2),
    ):
        candidate.run(pytest.fail)
    assert len(leader.candidates()) == 1
    leader.resign()
