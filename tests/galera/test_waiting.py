"""A lease that was waited for runs from its grant on."""

from distlock import Lock
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.galera.conftest import NODES


def wait(name):
    """In a process of its own, for threads of one wait for each other."""
    lock = Lock(name, using=NODES[0], lease=3, timeout=PATIENCE)
    with lock:
        write_line(lock.info().since.replace(tzinfo=None).isoformat(" "))


def test_a_lease_that_was_waited_for_runs_from_its_grant_on(nodes, child, name):
    """All clients are at one node, and one waits in the queue for longer than its lease lasts."""

    def queued(milliseconds):
        return nodes[0].execute(
            "SELECT 1 FROM information_schema.processlist"
            f" WHERE state = 'User lock' AND time_ms > {milliseconds}"
        )

    with Lock(name, using=NODES[0], lease=60):
        waiting = [child(wait, name) for _ in range(2)]
        eventually(lambda: queued(4000))
        ((freed,),) = nodes[0].execute("SELECT UTC_TIMESTAMP(6)")
    for one in waiting:
        assert one.line() >= str(freed)
