"""Hosts that end with the test; what they have logged is shown when it fails."""

from contextlib import ExitStack

import pytest

from tests.hosts.host import Host


@pytest.fixture
def host(request):
    """``host("uwsgi", "--master", loading="use")``: start a host that serves the test's module."""
    with ExitStack() as after:

        def start(program, *options, module=request.module.__name__, **more):
            started = after.enter_context(Host(program, module, *options, **more))
            after.callback(show, started)  # before its folder is removed
            return started

        yield start


def show(host):
    """Print the log, which pytest shows if the test has failed."""
    print(host.log.read_text(errors="replace"))
