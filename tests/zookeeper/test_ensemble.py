"""Three servers, of which some go away: the lock has one holder at a time, and finds the next."""

import signal

import pytest

from distlock import Lock, LockLost, locks
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, passed
from tests.faults.leaders import kill_leaders_while_turns_are_taken
from tests.zookeeper.network import server_of

pytestmark = pytest.mark.parametrize("servers", [pytest.param(3, id="three")], indirect=True)

#: seconds, of which the election of a new leader may take a good part
SESSION = 4


@pytest.fixture
def using(configure):
    return configure(session_timeout=SESSION)


def serving(servers, alias):
    """Return the server that a client is connected to; None if there is none at the moment."""
    if (found := server_of(alias)) is None:
        return None
    return next(server for server in servers if server.port == found[1])


def moves(servers, alias, lost):
    """Wait until a client is connected to another server than ``lost``."""
    eventually(lambda: serving(servers, alias) not in (None, lost))


def still_held(lock, token):
    """Whether the lock is held; else its lease has ended, where the others took long to agree."""
    try:
        lock.verify()
        assert lock.token == token
    except LockLost as loss:
        assert "ended" in str(loss)
        return False
    return True


def taking(actor, name, held):
    """Let another client wait for the lock, and note if ``held`` was still held when it got it."""

    def take():
        lock = Lock(name, using="other", timeout=2 * PATIENCE)
        lock.acquire()
        return lock.token, held.held

    return actor("thread", "other").call(take)


def leave(lock):
    """Leave the lock; whether it had been held until then."""
    try:
        lock.release()
    except LockLost:
        return False
    return True


@pytest.mark.slow
def test_the_leader_is_killed_while_the_lock_is_held_and_waited_for(
    using, ensemble, tree, actor, name
):
    on_lost = Once()
    lock = actor("thread", using).take(name, on_lost=on_lost)
    token = lock.token
    next_one = taking(actor, name, lock)
    eventually(lambda: len(tree.queue(name)) == 2)
    ensemble.leader.kill()
    assert ensemble.leader.running
    eventually(lambda: locks[using].client.connected)
    had_by_the_next = next_one.done()  # first, because the lock may be lost any time
    assert not (still_held(lock, token) and had_by_the_next)
    held = leave(lock)
    next_token, both_held = next_one.result(2 * PATIENCE)
    assert next_token > token
    assert not both_held
    assert held or on_lost.wait()
    eventually(lambda: len(tree.queue(name)) == 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_holder_moves_to_another_server_when_its_own_goes_away(using, servers, tree, name, fault):
    """With or without a word: a server that was stopped does not even close the connection."""
    lock = Lock(name, using=using)
    lock.acquire()
    token = lock.token
    lost = serving(servers, using)
    getattr(lost, fault)()
    moves(servers, using, lost)
    still_held(lock, token)
    leave(lock)
    with Lock(name, using="other", timeout=PATIENCE) as other:
        assert other.token > token


@pytest.mark.slow
def test_a_waiter_moves_to_another_server_when_its_own_goes_away(using, servers, tree, actor, name):
    lock = Lock(name, using="third")
    lock.acquire()
    waiting = actor("thread", using).lock(name).start("acquire")
    eventually(lambda: len(tree.queue(name)) == 2)
    lost = serving(servers, using)
    lost.kill()
    moves(servers, using, lost)
    assert not (waiting.done() and lock.held)  # in this order: it may be lost any time
    leave(lock)
    assert waiting.result(2 * PATIENCE) is True


@pytest.mark.slow
def test_what_a_stopped_server_had_been_asked_for_is_not_done_later(using, servers, tree, name):
    """Where the request for a node lay unread, that node would stay in the queue for ever."""
    lock = Lock(name, using=using)
    lock.acquire()
    lock.release()
    stopped = serving(servers, using)
    stopped.pause()
    assert lock.acquire(timeout=PATIENCE) is True
    assert serving(servers, using) is not stopped
    stopped.resume()
    stopped.await_answer()  # it is one of them again
    passed(SESSION / 8)
    queue = tree.queue(name)
    # On a slow machine the lease may have ended meanwhile.
    assert len(queue) == 1 or (not queue and not lock.held)
    leave(lock)
    eventually(lambda: tree.queue(name) == [])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_processes_take_turns_while_one_leader_after_the_other_is_killed(
    using, ensemble, tree, child, name, tmp_path
):
    kill_leaders_while_turns_are_taken(using, ensemble, child, name, tmp_path / "events")
    eventually(lambda: tree.queue(name) == [])


def hold(using, name):
    lock = Lock(name, using=using)
    lock.acquire()
    write_line("held", lock.token)
    read_line()
    write_line(lock.held)
    try:
        lock.release()
    except LockLost:
        write_line("LockLost")


@pytest.mark.slow
def test_a_stopped_holder_has_lost_and_harms_nobody(brief, tree, child, name):
    stopped = child(hold, brief, name)
    token = int(stopped.line().split()[1])
    stopped.signal(signal.SIGSTOP)
    with Lock(name, using="other", timeout=PATIENCE) as successor:
        assert successor.token > token
        stopped.tell("go on")
        stopped.signal(signal.SIGCONT)
        assert stopped.finish() == ["False", "LockLost"]
        successor.verify()
        assert len(tree.queue(name)) == 1
