"""A local backend for what needs one."""

import pytest

from distlock import locks


@pytest.fixture(autouse=True)
def local(settings):
    """Let the alias ``local`` be a local backend."""
    settings.DISTLOCK = {"local": {"BACKEND": "distlock.backends.local.LocalBackend"}}
    yield
    locks.close_all()
