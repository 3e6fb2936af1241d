"""What a node says of a statement that it ran again, because another node had been faster."""

import threading
from contextlib import suppress

from distlock import locks
from distlock.backends.database.errors import SerializationFailure
from distlock.backends.database.mariadb import MariaDB
from distlock.backends.database.statements import Statement
from tests.database.lending import in_use
from tests.database.speaking import claim
from tests.galera.conftest import NODES

ROUNDS = 150


def test_one_of_two_nodes_grants_a_lock_that_both_are_asked_for_at_once(nodes, name):
    """Our sessions forbid the server to run a statement again; here they allow it."""
    dialect, start = MariaDB(), threading.Barrier(len(NODES))
    granted = [[] for _ in NODES]

    def ask_over_and_over(number, node):
        with in_use(locks[node].pool) as session:
            session.run(Statement("SET SESSION wsrep_retry_autocommit = 4"), 10)
            for turn in range(ROUNDS):
                wanted = claim(name, duration=30.0)
                start.wait(30)
                with suppress(SerializationFailure):
                    token = dialect.acquire(lambda asked: session.run(asked, 10), wanted)
                    granted[number].append((turn, token, wanted)) if token else None
                start.wait(30)
                if number == 0:
                    row = session.run(dialect.one(name), 10)
                    rows.append((turn, *dialect.rows(row)))
                start.wait(30)
                session.run(dialect.free(name, nonce=wanted.nonce), 10)

    rows = []
    threads = [threading.Thread(target=ask_over_and_over, args=pair) for pair in enumerate(NODES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    told = {turn: [] for turn in range(ROUNDS)}
    for turn, token, wanted in (one for each in granted for one in each):
        told[turn].append((token, wanted.nonce))
    for turn, row in rows:
        assert told[turn] in ([], [(row.token, row.nonce)])
    assert sum(map(bool, told.values())) > ROUNDS / 2
