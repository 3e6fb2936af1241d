"""The kinds of backends, and what folders of tests share that run on each of them."""

from contextlib import ExitStack
from functools import cache

import pytest
from django.conf import settings
from django.test import override_settings

from distlock import NotSupported

KINDS = ["local", "sqlite", "mariadb", "postgresql", "zookeeper", "etcd"]
#: kinds that exist within one process only, and the others
ONE_PROCESS = {"local"}
SHARED = [kind for kind in KINDS if kind not in ONE_PROCESS]
#: kinds whose leases have one length, which is that of their session
ONE_LEASE = {"zookeeper"}
#: seconds; ZooKeeper's locks last as long as their session, which is to survive a busy machine
SESSION = 8


def kind_of(item):
    """Return the kind of backend that a test runs on, None if it names none."""
    spec = getattr(item, "callspec", None)
    return spec.params.get("kind") if spec else None


def one_after_the_other(items, folder, mark="none"):
    """Run all tests below ``folder`` of one kind before those of the next, on the same sessions.

    Of each kind, those with ``mark`` come last.
    """

    @cache
    def is_there(path):
        return path.is_relative_to(folder)

    def place_of(item):
        kind = kind_of(item)
        marked = item.get_closest_marker(mark) is not None
        return KINDS.index(kind) if kind in KINDS else -1, marked

    places = [place for place, item in enumerate(items) if is_there(item.path)]
    chosen = sorted((items[place] for place in places), key=place_of)
    for place, item in zip(places, chosen, strict=True):
        items[place] = item


# For the conftest.py of such a folder, which gives them the same names:


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Where leases have one length, all there is to say of another length is that it is refused.

    What those locks do when a lease ends is told by the tests of their backend.
    """
    try:
        return (yield)
    except NotSupported as error:
        if kind_of(pyfuncitem) in ONE_LEASE and str(error).startswith("lease="):
            return True
        raise


@pytest.fixture(scope="package")
def configured():
    """``configured(DISTLOCK)``: let this be the setting until another is asked for."""
    with ExitStack() as after:

        def configure(wanted):
            if getattr(settings, "DISTLOCK", None) != wanted:
                after.close()
                after.enter_context(override_settings(DISTLOCK=wanted))

        yield configure
