"""Ten thousand locks of one process are renewed in a few statements a period."""

import math
import time

import pytest

from distlock import Lock
from distlock.concurrency.clock import clock

pytestmark = pytest.mark.once

LOCKS = 10_000
LEASE = 15
PERIOD = LEASE / 3
MOST_STATEMENTS = 40  # a period

STATEMENTS = """
SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS
WHERE VARIABLE_NAME IN ('COM_UPDATE', 'COM_SELECT')
"""


@pytest.fixture
def locks(backend_settings, settings):
    settings.DISTLOCK = backend_settings("mariadb", LEASE=LEASE)
    held = [Lock(f"many:{number}", on_busy="raise") for number in range(LOCKS)]
    for lock in held:
        assert lock.acquire()
    yield held
    for lock in held:
        lock.release()


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_many_leases_are_renewed_in_few_statements(locks, mariadb):
    def statements():
        return int(mariadb.execute(STATEMENTS)[0][0])

    wait_until_all_are_renewed(locks)  # those taken one after the other are renewed together now
    began, before = clock(), statements()
    wait_until_all_are_renewed(locks)
    counted = statements() - before - 1  # the first count was a SELECT, too
    periods = math.ceil((clock() - began) / PERIOD)
    assert LOCKS / 1000 < counted <= MOST_STATEMENTS * periods


def wait_until_all_are_renewed(locks):
    began = clock()
    while not all(renewed_since(lock, began) for lock in locks):
        time.sleep(0.1)


def renewed_since(lock, moment):
    """A renewal counts from before it was sent; losing a lock raises LockLost here."""
    return lock.remaining + clock() > moment + LEASE
