"""What is asked of a few records of a directory costs the same however many others are in it."""

import pytest
from django.db import connections

from distlock import locks
from distlock.backends.store import Absent, Delete, Exists, Put
from distlock.models import DatabaseRecord, RecordDirectory
from tests.contract.watch import eventually

KEYS = [f"key:{number:05}" for number in range(12)]
OTHERS = 5000
_READ = """
SELECT pg_stat_force_next_flush(), (SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes
WHERE relname = 'database_lock_record')
"""
_END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
def large(postgresql, backend_settings, settings):
    """Records in one large directory, among many small ones, as the server knows."""
    settings.DISTLOCK = backend_settings("postgresql")
    made = RecordDirectory.objects.using("postgresql").bulk_create(
        RecordDirectory(name=name, revision=1)
        for name in ["large", *(f"small:{number}" for number in range(1000))]
    )
    counts = [OTHERS, *[3] * 1000]
    DatabaseRecord.objects.using("postgresql").bulk_create(
        DatabaseRecord(directory=one.id, name=f"key:{number:05}", value="1", created=1, revision=1)
        for one, count in zip(made, counts, strict=True)
        for number in range(count)
    )
    postgresql.execute("ANALYZE database_lock_record")
    yield
    locks.close_all()


def store():
    return locks["default"].store


def end_sessions(postgresql):
    """End all sessions: only at its end, or some time later, one reports what it has read."""
    locks.close_all()
    connections["postgresql"].close()
    eventually(lambda: postgresql.execute(_END_OTHERS) == [])


def rows_read(postgresql, call):
    """Return how many entries of the indexes of the records a call reads."""
    end_sessions(postgresql)
    before = postgresql.execute(_READ)[0][1] or 0
    call()
    end_sessions(postgresql)
    return eventually(lambda: max(postgresql.execute(_READ)[0][1] - before, 0))


def test_a_look_at_some_reads_only_these(large, postgresql):
    assert 0 < rows_read(postgresql, lambda: store().look("large", KEYS)) < OTHERS / 10


def test_a_change_on_conditions_reads_only_what_it_is_about(large, postgresql):
    new = [f"new:{key}" for key in KEYS]

    def change():
        changes = [*map(Delete, KEYS), *(Put(key, 2) for key in new)]
        assert store().apply("large", changes, [*map(Exists, KEYS), *map(Absent, new)])

    assert 0 < rows_read(postgresql, change) < OTHERS / 10
    assert sorted(store().look("large", KEYS + new).records) == new
