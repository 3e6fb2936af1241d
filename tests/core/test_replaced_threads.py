"""Hosts that replace threads by greenlets in a way with which no lock works: they are told so."""

import http.client
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tests.servers.guard import guard
from tests.servers.process import free_port

pytestmark = pytest.mark.once

#: Loads distlock as an application does, uses a lock for each request, and tells what came of it.
APPLICATION = """
import os, sys, django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["distlock"], USE_TZ=True,
    DISTLOCK={"default": {"BACKEND": "distlock.backends.local.LocalBackend"}},
)
django.setup()
from distlock import Lock
if "USED" in os.environ:
    Lock("used").acquire()
def application(environ, start_response):
    try:
        with Lock("page"):
            text = "held"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [text.encode()]
"""
PATCHED_BEFORE = "from gevent import monkey; monkey.patch_all()"

EVENTLET = """
import eventlet
eventlet.monkey_patch()
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["distlock"], USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "locks.sqlite3"}},
)
django.setup()
from django.core.checks import run_checks
from distlock import Lock, LockError
try:
    Lock("page").acquire()
except LockError as error:
    print(type(error).__name__, error)
print([message.id for message in run_checks() if message.id.startswith("distlock.E")])
"""


@contextmanager
def gunicorn(folder, *options, configuration="", **environment):
    """Serve the application by one worker for gevent; a function that asks for a page."""
    (folder / "app.py").write_text(APPLICATION)
    (folder / "gunicorn.conf.py").write_text(configuration)
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-k", "gevent", "-w", "1"]
    server = subprocess.Popen(
        [*command, "-b", f"127.0.0.1:{port}", *options, "app:application"],
        cwd=folder,
        # Some versions make a socket in the home directory.
        env={**os.environ, "PYTHONPATH": os.getcwd(), "HOME": str(folder), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    guard().watch(server.pid, 9)

    def page():
        until = time.monotonic() + 30
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            try:
                connection.request("GET", "/")
                return connection.getresponse().read().decode()
            except ConnectionRefusedError:
                assert time.monotonic() < until
                time.sleep(0.05)
            finally:
                connection.close()

    try:
        yield page
    finally:
        server.terminate()
        try:
            server.wait(20)
        finally:
            server.kill()  # nothing, if it has ended
            server.wait()
            guard().forget(server.pid)


@pytest.mark.parametrize("used", [{}, {"USED": "1"}], ids=["loaded", "used while loading"])
def test_gevent_after_distlock_is_refused(tmp_path, used):
    with gunicorn(tmp_path, "--preload", **used) as page:
        assert page().startswith("NotSupported: gevent has replaced the threads")


def test_gevent_before_distlock_works(tmp_path):
    with gunicorn(tmp_path, "--preload", configuration=PATCHED_BEFORE) as page:
        assert page() == "held"


def test_gevent_works_where_workers_load_the_application(tmp_path):
    with gunicorn(tmp_path) as page:
        assert page() == "held"


def test_eventlet_is_refused(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EVENTLET],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lock, checks = said.stdout.splitlines()
    assert lock.startswith("NotSupported eventlet has replaced the threads")
    assert checks == "['distlock.E010']"
