"""The loss of a lock ends the body in which a recipe is used, at whatever step it comes."""

import pytest

from distlock import LockLost, locks
from distlock.backends.local import LocalBackend
from distlock.exceptions import BodyEnded
from distlock.recipes import Election, MultiLock, Progress, Queue


@pytest.fixture
def lose(local, monkeypatch):
    """Let the next change of a record meet the loss of another lock."""

    def meet(*args, **kwargs):
        raise BodyEnded("the lock around this was lost")

    return lambda: monkeypatch.setattr(locks["default"].store, "apply", meet)


def test_at_the_end_of_a_block_that_has_failed(lose, name):
    queue = Queue(name)
    queue.put("letter")
    with pytest.raises(BodyEnded), queue.get():
        lose()
        raise ValueError("no address")


def test_when_a_progress_begins(lose, name):
    lose()
    with pytest.raises(BodyEnded):
        Progress(name).start()


def test_when_a_progress_ends(lose, name):
    progress = Progress(name).start()
    lose()
    with pytest.raises(BodyEnded):
        progress.finish()


def test_when_what_was_led_is_left_after_its_work(lose, name):
    election = Election(name)
    with pytest.raises(BodyEnded):
        election.run(lose)
    assert not election.leading


def test_when_one_stands_again(lose, name):
    election = Election(name)
    election.campaign()
    election.force_release(election.term, reason="tried")
    lose()
    with pytest.raises(BodyEnded):
        election.campaign()


def test_what_was_led_is_lost_and_so_is_a_lock_around_it(local, name):
    """Such a candidate does not stand again."""
    election, calls = Election(name), []

    def work():
        calls.append(election.force_release(election.term, reason="tried"))
        raise BodyEnded("the lock around this was lost")

    with pytest.raises(BodyEnded):
        election.run(work)
    assert calls == [True]


def test_when_several_locks_are_verified_of_which_one_is_lost(local, name, monkeypatch):
    def meet(backend, lease, *args):
        if lease.name.endswith("b"):
            raise BodyEnded("the lock around this was lost")
        return False

    monkeypatch.setattr(LocalBackend, "verify", meet)
    both = MultiLock(f"{name}:a", f"{name}:b")
    both.acquire()
    with pytest.raises(BodyEnded):
        both.verify()
    with pytest.raises(LockLost, match=f"{name}:a"):
        both.release()
