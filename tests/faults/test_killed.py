"""SIGKILL at any moment: never two at once, tokens grow, and the lock finds its next holder."""

import os
import random
import time

import pytest

from distlock import Lock
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.faults.checker import Log, NotGrowing, Overlap, check

LEASE = 5  # seconds: who stood still for longer would be seen inside with the next one
WORKERS = 4
KILLS = 10


def take_turns(using, name, path, pause):
    """Enter and leave for ever, noting both."""
    log = Log(path)
    lock = Lock(name, using=using, lease=LEASE)
    while True:
        with lock:
            token = lock.token
            log.write("enter", token, os.getpid())
            time.sleep(pause)
            log.write("leave", token, os.getpid())


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "events")
    yield log
    log.close()


@pytest.mark.slow
def test_processes_killed_at_random(child, actor, using, name, log):
    dice = random.Random(name)
    workers = [child(take_turns, using, name, log.path, 0.002) for _ in range(WORKERS)]
    eventually(lambda: {event[2] for event in log.events()} == {str(w.pid) for w in workers})
    for _ in range(KILLS):
        seen = len(log.events())
        # anywhere within a turn: waiting, taking, inside, leaving, renewing
        end = clock() + dice.uniform(0, 0.05)
        eventually(lambda end=end: clock() > end)
        victim = workers.pop(dice.randrange(len(workers)))
        log.write("kill", victim.pid)
        victim.kill()
        workers.append(child(take_turns, using, name, log.path, 0.002))
        # whoever was killed, the others go on, at the latest when its lease has ended
        eventually(lambda seen=seen: sum(e[0] == "enter" for e in log.events()[seen:]) > 0)
    for worker in workers:
        log.write("kill", worker.pid)
        worker.kill()
    assert check(log.events()) > KILLS
    lock = actor("thread").lock(name)
    assert lock.acquire(timeout=PATIENCE)
    assert lock.token > max(int(event[1]) for event in log.events() if event[0] == "enter")


@pytest.mark.parametrize("kind", ["local"])
def test_the_checker_finds_processes_that_do_not_exclude_each_other(child, using, name, log):
    """The control: the same processes with locks that end at the process."""
    workers = [child(take_turns, using, name, log.path, 0.05) for _ in range(WORKERS)]
    eventually(lambda: len({event[2] for event in log.events()}) == WORKERS)
    eventually(lambda: sum(event[0] == "enter" for event in log.events()) >= 5 * WORKERS)
    for worker in workers:
        worker.kill()
    # One whose tokens are older may come in just when nobody else is inside.
    with pytest.raises((Overlap, NotGrowing)):
        check(log.events())


def events(text):
    return [line.split() for line in text.strip().splitlines()]


GOOD = """
enter 1 a
leave 1 a
enter 2 b
kill b
enter 3 a
leave 3 a
kill a
enter 5 c
kill c
leave 5 c
kill d
enter 6 d
enter 7 e
"""


def test_the_checker_accepts_turns_and_deaths():
    assert check(events(GOOD)) == 6


@pytest.mark.parametrize(
    "bad",
    [
        "enter 1 a\nenter 2 b",
        "enter 1 a\nenter 2 b\nleave 1 a\nleave 2 b",
        "enter 1 a\nkill b\nenter 2 c",
        "enter 1 a\nleave 1 a\nleave 1 a",
        "enter 1 a\nkill a\nenter 2 b\nleave 1 a",
    ],
)
def test_the_checker_finds_two_inside(bad):
    with pytest.raises(Overlap):
        check(events(bad))


@pytest.mark.parametrize(
    "bad",
    [
        "enter 2 a\nleave 2 a\nenter 2 b",
        "enter 2 a\nleave 2 a\nenter 1 b",
        "enter 2 a\nkill a\nenter 2 b",
    ],
)
def test_the_checker_finds_tokens_that_do_not_grow(bad):
    with pytest.raises(NotGrowing):
        check(events(bad))
