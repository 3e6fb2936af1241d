"""A web process joins the group of the setting with its first request, after it was forked."""

import os
import signal
import sys
import threading
from io import BytesIO
from itertools import islice

import pytest
from django.core.handlers.wsgi import WSGIHandler

from distlock.recipes import Group
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import KINDS, ONE_LEASE, SHORT, SHORTEST

#: the others take long, or live in one process
EVERY_DAY = {"postgresql", "local"}


def ask_for_a_page():
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/nowhere",
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "wsgi.input": BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.url_scheme": "http",
    }
    response = WSGIHandler()(environ, lambda *args, **kwargs: None)
    response.close()


def serve():
    """As a child: a server that forks two processes, of which each answers until it is told."""
    write_line("started")
    read_line()
    pids = []
    for _ in range(2):
        if (pid := os.fork()) == 0:
            for _ in range(2):
                ask_for_a_page()
            signal.pause()
        pids.append(pid)
    write_line(*pids)
    read_line()


def answer_and_end():
    """As a child: a server that answers until it ends, which has joined."""
    ask_for_a_page()
    eventually(lambda: "distlock-member" not in {one.name for one in threading.enumerate()})
    write_line("answered")
    read_line()


@pytest.fixture
def lasting():
    """Whether a member that stands still for a moment goes on as the one that it is."""
    return False


@pytest.fixture
def group(backend_settings, settings, name, kind, lasting):
    if lasting:
        lease = {"OPTIONS": {"session_timeout": 20}} if kind in ONE_LEASE else {"LEASE": 60}
    else:
        lease = {} if kind in SHORTEST else {"LEASE": SHORT}
    settings.DISTLOCK = backend_settings(kind, **lease)
    settings.DISTLOCK_GROUPS = {"web": name}
    return Group(name)


@pytest.fixture
def kind():
    return "postgresql"


def test_each_process_of_a_server_joins_with_its_first_request(child, group):
    server = child(serve)
    server.line()
    assert group.members() == ()
    server.tell("fork")
    pids = set(map(int, server.line().split()))
    assert group.wait_for(2, PATIENCE)
    # A member that stood still for longer than its lease joins again.
    members = eventually(lambda: len(members := group.members()) == 2 and members)
    assert {member.owner.pid for member in members} == pids
    assert [member.data for member in members] == [{"role": "web"}] * 2
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: group.members() == ())


@pytest.mark.parametrize(
    "kind",
    [
        "postgresql",
        *(pytest.param(one, marks=pytest.mark.slow) for one in KINDS if one not in EVERY_DAY),
    ],
)
@pytest.mark.parametrize("lasting", [True], ids=["lasting"])
def test_it_leaves_when_it_ends(child, group):
    server = child(answer_and_end)
    server.line()
    changes = group.changes(PATIENCE)
    joined = next(changes)
    server.tell("end")
    server.finish()
    assert next(changes) == ("left", joined.member)


def test_the_test_client_joins_nothing(client, group):
    """Requests of tests do not make the test run a member."""
    from distlock import process_members

    process_members.watch()
    client.get("/nowhere")
    assert list(islice(group.changes(0), 1)) == []
