"""Leaders, holders and waiters that are cut off or stand still, and clocks that are moved."""

import signal

import pytest

from distlock import Lock, LockLost, LockUnavailable, locks
from distlock.types.lease import State
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, passed
from tests.faults.leaders import kill_leaders_while_turns_are_taken
from tests.servers.etcd import Etcd, EtcdEnsemble

#: seconds, of which the election of a new leader may take a good part
LEASE = 4


@pytest.fixture
def ensemble(etcd_ensemble):
    """Three servers that are one service, all of them up."""
    etcd_ensemble.members[0].delete("/distlock/")
    yield etcd_ensemble
    etcd_ensemble.heal()


@pytest.fixture
def using(configure, ensemble):
    """The alias of a client of all three; there are two more."""
    aliases = ("default", "other", "third")
    return configure(dict.fromkeys(aliases, ensemble.hosts), {"LEASE": LEASE})


@pytest.fixture
def apart(configure):
    """``apart(ensemble, one)``: let the first client know only one member, and the rest others."""

    def configured(ensemble, one):
        rest = ",".join(member.hosts for member in ensemble.members if member is not one)
        locations = {"default": one.hosts, "other": rest, "third": rest}
        return configure(locations, {"LEASE": LEASE}, timeout=LEASE)

    return configured


def taking(actor, name, held):
    """Let another client wait for the lock, and note if ``held`` was still held when it got it."""

    def take():
        lock = Lock(name, using="other", timeout=2 * PATIENCE)
        while True:
            try:
                lock.acquire()
                return lock.token, held.held
            except LockUnavailable:  # no leader for so long
                passed(0.1)

    return actor("thread", "other").call(take)


def leave(lock):
    """Leave the lock; whether it had been held until then."""
    try:
        lock.release()
    except LockLost:
        return False
    return True


def waiting(alias, name):
    """Wait until somebody waits for the lock."""
    eventually(lambda: locks[alias].inspect(name).waiters)


@pytest.mark.slow
def test_a_leader_that_was_stopped_and_goes_on_keeps_no_lock(apart, ensemble, actor, name):
    """It answers what it was asked before, and does not know yet that another one leads."""
    leader = ensemble.leader
    apart(ensemble, leader)
    on_lost = Once()
    lock = actor("thread", "default").take(name, on_lost=on_lost)
    token = lock.token
    next_one = taking(actor, name, lock)
    waiting("third", name)
    leader.pause()
    next_token, both_held = next_one.result(2 * PATIENCE)
    assert next_token > token
    assert not both_held
    on_lost.wait()
    leader.resume()
    leader.await_answer()
    with pytest.raises(LockLost):
        lock.release()
    info = locks["third"].inspect(name)
    assert (info.state, info.token) == (State.HELD, next_token)
    assert Lock(name, using="third").force_release(next_token)


@pytest.fixture
def separable():
    """Three servers of the test's own, each of which can be cut off from the others."""
    with EtcdEnsemble(3, separable=True) as servers:
        yield servers
        locks.close_all()


@pytest.mark.slow
def test_a_leader_that_is_cut_off_keeps_no_lock(separable, apart, actor, name):
    """It lets leases run anew for as long as it has not noticed that another one leads."""
    leader = separable.leader
    apart(separable, leader)
    lock = actor("thread", "default").take(name)
    next_one = taking(actor, name, lock)
    waiting("third", name)
    separable.isolate(leader)
    leader.pause()  # so that it has not noticed for longer than it would need by itself
    others = [member for member in separable.members if member is not leader]
    eventually(lambda: any(member.leads() for member in others))
    passed(LEASE / 4)
    leader.resume()
    next_token, both_held = next_one.result(2 * PATIENCE)
    assert not both_held
    assert not lock.held
    separable.heal()
    assert Lock(name, using="third").force_release(next_token)
    with pytest.raises(LockLost):
        lock.release()


@pytest.fixture
def movable(configure):
    """A server of the test's own, whose wall clock can be moved."""
    with Etcd(movable=True) as server:
        addresses = dict.fromkeys(("default", "other", "third"), server.hosts)
        configure(addresses, {"LEASE": 20, "RENEW": 0.5})
        yield server
        locks.close_all()


def hold(using, name, lease=None):
    lock = Lock(name, using=using, lease=lease)
    lock.acquire()
    write_line("held", lock.token)
    read_line()
    write_line(lock.held)
    write_line(leave(lock))


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(3600, id="forward"), pytest.param(-3600, id="back", marks=pytest.mark.slow)],
)
def test_a_clock_that_is_moved_ends_no_lease_and_keeps_none(movable, child, seconds, name):
    with Lock(name) as lock:
        movable.clock.move(seconds)
        since = lock.info().renewed_at
        eventually(lambda: lock.info().renewed_at > since)
        assert not Lock(name, using="other").acquire(blocking=False)
        lock.verify()
    killed = child(hold, "other", name, 2)
    killed.line()
    killed.kill()
    with Lock(name, timeout=PATIENCE) as lock:
        lock.verify()


@pytest.mark.slow
def test_a_stopped_holder_has_lost_and_harms_nobody(using, child, name):
    stopped = child(hold, using, name)
    token = int(stopped.line().split()[1])
    stopped.signal(signal.SIGSTOP)
    with Lock(name, using="other", timeout=PATIENCE) as successor:
        assert successor.token > token
        stopped.tell("go on")
        stopped.signal(signal.SIGCONT)
        assert stopped.finish() == ["False", "False"]
        successor.verify()


def wait_for(using, name):
    lock = Lock(name, using=using)
    write_line("waits")
    lock.acquire()
    write_line("held", lock.token)
    read_line()
    lock.release()


@pytest.mark.slow
def test_nobody_waits_for_a_waiter_that_is_stopped(using, child, actor, name):
    lock = Lock(name, using=using)
    lock.acquire()
    stopped = child(wait_for, using, name)
    waiting("third", name)
    behind = actor("thread", "other").lock(name)
    waits = behind.start("acquire")
    eventually(lambda: len(locks["third"].inspect(name).waiters) == 2)
    stopped.signal(signal.SIGSTOP)
    lock.release()
    assert waits.result(2 * PATIENCE) is True
    stopped.signal(signal.SIGCONT)
    behind.verify()
    behind.release()
    assert stopped.line() == "waits"
    assert stopped.line().startswith("held")
    stopped.tell("go on")
    stopped.finish()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_processes_take_turns_while_one_leader_after_the_other_is_killed(
    using, ensemble, child, name, tmp_path
):
    kill_leaders_while_turns_are_taken(using, ensemble, child, name, tmp_path / "events")
