"""The hosts themselves: each runs functions of this module, before and in requests."""

import asyncio
import os
import threading

import pytest

from tests.contract.watch import eventually
from tests.hosts.stage import await_cue, note

HOSTS = [
    ("uwsgi", "--master", "--processes", "2"),
    ("gunicorn", "--workers", "2"),
    ("gunicorn", "--threads", "2"),
    ("gunicorn", "-k", "gevent"),
    ("uvicorn",),
    ("daphne",),
]


def load():
    note("loaded by", os.getpid())


def echo(word):
    return [word, threading.current_thread() is threading.main_thread()]


def wait_for_cue():
    note("waiting")
    await_cue("go")
    return os.getpid()


async def sleep():
    await asyncio.sleep(0)
    return "slept"


def fail():
    raise RuntimeError("this is shown")


@pytest.mark.parametrize("command", HOSTS, ids=" ".join)
def test_a_host_serves_functions(host, backend_settings, settings, command):
    settings.DISTLOCK = backend_settings("local")
    running = host(*command, loading="load")
    assert running.notes()[0].startswith("loaded by ")
    assert running.get("echo", word="a&b")[0] == "a&b"
    assert running.get("sleep") == "slept"
    with pytest.raises(AssertionError, match="RuntimeError: this is shown"):
        running.get("fail")
    waiting = running.begin("wait_for_cue")
    eventually(lambda: "waiting" in running.notes())
    running.cue("go")
    assert isinstance(waiting.result(60), int)
