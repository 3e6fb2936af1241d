"""Child processes do as they are told, and a test run that dies takes everything along."""

import asyncio
import os
import signal
import sys

import pytest

from tests.children import read_line, write_line
from tests.contract.watch import eventually
from tests.servers.guard import started_at

SAMPLE = "tests/harness/sample_run.py"


def echo(*words):
    write_line(*words)
    write_line(read_line())


async def echo_later(word):
    await asyncio.sleep(0)
    write_line(word)


def fail():
    sys.exit("it went wrong")


def say_settings():
    from django.conf import settings

    write_line(settings.DISTLOCK["default"]["LEASE"])


def say_whether_patched():
    from gevent import monkey

    write_line(monkey.is_module_patched("threading"))


def say_what_it_is():
    descriptors = sorted(map(int, os.listdir("/proc/self/fd")))[:-1]  # the last reads the folder
    threads = os.listdir("/proc/self/task")
    session = os.getsid(0) == os.getpid()
    write_line(descriptors, len(threads), session, os.environ.get("OF_THE_TEST"))


def say_how_it_takes_ctrl_c():
    write_line(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)


def run_the_sample():
    options = ["-s", "-q", "-p", "no:cacheprovider"]
    sys.exit(pytest.main([*options, SAMPLE]))


def test_lines_go_both_ways(child):
    process = child(echo, "one", 2)
    assert process.line() == "one 2"
    process.tell("three")
    assert process.finish() == ["three"]


def test_a_coroutine_function_is_run(child):
    assert child(echo_later, "x").finish() == ["x"]


def test_a_function_can_be_named(child):
    assert child("tests.harness.test_children:echo_later", "x").finish() == ["x"]


def test_a_child_has_the_locks_of_its_parent(child, settings, backend_settings):
    settings.DISTLOCK = backend_settings("local", LEASE=7)
    assert child(say_settings).finish() == ["7"]


def test_a_child_can_be_patched_by_gevent(child):
    assert child(say_whether_patched, gevent=True).finish() == ["True"]
    assert child(say_whether_patched).finish() == ["False"]


def test_a_child_has_nothing_but_its_streams_and_its_environment(child, monkeypatch):
    child(echo, "another")
    monkeypatch.setenv("OF_THE_TEST", "set")
    assert child(say_what_it_is).finish() == ["[0, 1, 2] 1 True set"]


def test_a_child_ignores_the_signals_that_its_parent_ignores(child):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ignoring = child(say_how_it_takes_ctrl_c)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ignoring.finish() == ["True"]
    assert child(say_how_it_takes_ctrl_c).finish() == ["False"]


def test_a_failure_shows_what_the_child_wrote(child):
    with pytest.raises(AssertionError, match="it went wrong"):
        child(fail).finish()
    with pytest.raises(AssertionError, match="it went wrong"):
        child(fail).line()


def test_a_killed_child_is_reaped(child):
    process = child(echo)
    process.line()
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert started_at(process.pid) is None


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_nothing_behind(child, signum):
    run = child(run_the_sample)
    line = run.line(timeout=100)
    while not line.startswith("running"):
        line = run.line(timeout=100)
    _, folder, *pids = line.split()
    born = {pid: started_at(int(pid)) for pid in pids}
    there = {pid: started for pid, started in born.items() if started}  # some work for a moment
    assert len(there) > 2
    run.signal(signum)
    run.wait()
    assert eventually(lambda: not any(started_at(int(pid)) == there[pid] for pid in there))
    assert eventually(lambda: not os.path.exists(folder))
