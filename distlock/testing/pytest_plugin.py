"""The fixture ``isolated_locks``. Does nothing until a test asks for it, and needs no settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def isolated_locks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if it does not leave a lock; see :func:`distlock.testing.isolated_locks`.

    The setting ``usefixtures = ["isolated_locks"]`` gives it to every test.
    """
    # Rows of locks are freed after the test, so the test's access to the database must end later.
    # pytest sets up what an ini file names before the fixtures of plugins.
    if request.config.pluginmanager.hasplugin("django") and (
        request.node.get_closest_marker("django_db")
        or {"db", "live_server", "transactional_db"}.intersection(request.fixturenames)
    ):
        request.getfixturevalue("db")
    from distlock.testing import isolated_locks as isolated

    with isolated():
        yield
