"""The fixture ``isolated_locks``. Does nothing until a test asks for it, and needs no settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def isolated_locks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Find the locks free; free them again, and fail if the test has not left one.

    The setting ``usefixtures = ["isolated_locks"]`` gives it to every test.
    See :func:`distlock.testing.isolated_locks`.
    """
    # pytest-django's access to the database must outlast this, to free what lies there.
    for database in ("transactional_db", "db"):
        if database in request.fixturenames:
            request.getfixturevalue(database)
    from distlock.testing import isolated_locks as isolated

    with isolated():
        yield
