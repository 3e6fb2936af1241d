"""Lets the tests of a module run on every kind of backend: import pytest_generate_tests from here.

With ``first`` a test runs as a thread and as a task. With ``second`` these are two actors: a thread
and a task where locks live within one process, else a thread, or a task, and a process.
"""

import pytest

from tests.kinds import KINDS, ONE_LEASE, ONE_PROCESS  # noqa: F401 - tests use them from here

#: The shortest lease of each kind, in seconds; the tests' for the others. Machines stand still for
#: a second or three, and disks for longer: so these are renewed more often than leases usually are.
SHORTEST = {"zookeeper": 4.0, "etcd": 3.5, "sqlite": 3.5}
SHORT = 3.5
#: seconds between two renewals of them
RENEWED = 0.25
#: what the tests of faults run on every day; on the others they take long
FAULTS_EVERY_DAY = {"local", "postgresql"}


def pytest_generate_tests(metafunc):
    """See above. Marks: ``shared`` leaves out what lives in one process; ``faults`` takes long.

    ``not_on(*kinds)`` leaves out kinds that have nothing of what the test is about.
    """
    names = metafunc.fixturenames
    if "kind" not in names:
        return
    marked = metafunc.definition.get_closest_marker
    out = {*(ONE_PROCESS if marked("shared") else ()), *getattr(marked("not_on"), "args", ())}
    kinds = [kind for kind in KINDS if kind not in out]
    rare = KINDS if marked("slow") else set(KINDS) - FAULTS_EVERY_DAY if marked("faults") else set()
    if "roles" not in names:
        metafunc.parametrize("kind", [_param(kind, kind, kind in rare) for kind in kinds])
        return
    pairs = "second" in names
    metafunc.parametrize(
        ("kind", "roles"),
        [
            _param((kind, roles), f"{kind}-{'+'.join(roles)}", kind in rare or seldom)
            for kind in kinds
            for roles, seldom in _roles(kind, pairs)
        ],
    )


def _roles(kind, pairs):
    alone = kind in ONE_PROCESS
    if not pairs:
        return [(("thread",), False), (("task",), not alone)]
    if alone:
        return [(("thread", "task"), False), (("task", "thread"), True)]
    return [(("thread", "process"), False), (("task", "process"), True)]


def _param(values, name, rare):
    values = values if isinstance(values, tuple) else (values,)
    return pytest.param(*values, id=name, marks=[pytest.mark.slow] if rare else [])
