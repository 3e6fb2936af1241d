"""Many leases are renewed some at a time: what holds up some holds up no others."""

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distlock import Lock, locks
from distlock.backends.local import LocalBackend
from distlock.runtime.renewal import STEP
from tests.contract.watch import eventually
from tests.kinds import KINDS

ALIAS = "silent"
_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "renewals.py"


@pytest.fixture
def renewals(monkeypatch):
    """The names in each renewal on a local backend; those with "stuck" wait for ``go_on``."""
    seen, renew = [], LocalBackend.renew

    def note(backend, leases, *args):
        names = [lease.name for lease in leases]
        seen.append(names)
        if any("stuck" in name for name in names):
            seen.go_on.wait()
        return renew(backend, leases, *args)

    class Seen(list):
        go_on = threading.Event()

    seen = Seen()
    monkeypatch.setattr(LocalBackend, "renew", note)
    yield seen
    seen.go_on.set()


def take_all(names):
    held = [Lock(name, using=ALIAS) for name in names]
    for lock in held:
        assert lock.acquire()
    return held


def leave_all(held):
    for lock in held:
        lock.release()
    locks.close_all()


def test_steps_are_bounded_and_one_that_is_held_up_holds_up_no_others(
    backend_settings, settings, renewals
):
    settings.DISTLOCK = backend_settings("local", alias=ALIAS, LEASE=60, RENEW=2)
    names = [f"many:{number}" for number in range(2 * STEP)]
    held = take_all([*names, *(f"stuck:{number}" for number in range(STEP))])
    expected = set(names)
    eventually(lambda: expected <= {name for step in [*renewals] for name in step})
    assert max(map(len, renewals)) <= STEP
    assert "many:0" in renewals[0], "the first to end comes first"
    renewals.clear()
    # In the next rounds, too, though the others have had no answer yet; and few of them.
    eventually(lambda: expected <= {name for step in [*renewals] for name in step})
    for lock in held[5 : 2 * STEP]:
        lock.release()
    del held[5 : 2 * STEP]
    renewals.clear()
    eventually(lambda: set(names[:5]) <= {name for step in [*renewals] for name in step})
    assert not any("stuck" in name for step in renewals for name in step)
    renewals.go_on.set()
    leave_all(held)


def test_a_renewal_without_an_answer_is_told_of_at_half_of_its_lease(
    backend_settings, settings, renewals, caplog
):
    settings.DISTLOCK = backend_settings("local", alias=ALIAS, LEASE=6, RENEW=0.2)
    with caplog.at_level(logging.WARNING, "distlock"):
        held = take_all(["stuck:first", "stuck:second"])
        eventually(lambda: said(caplog, "no answer yet"))
        assert all(lock.held for lock in held)
        renewals.go_on.set()
        eventually(lambda: said(caplog, "works again"))
    (line,) = said(caplog, "no answer yet")
    assert " 'stuck:first', in " in line
    leave_all(held)


def said(caplog, what):
    start = f"renewal on {ALIAS!r}"
    return [line for line in caplog.messages if line.startswith(start) and what in line]


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", [[], ["--seats"]], ids=["locks", "seats"])
def test_thousands_of_holds_live_on_a_busy_machine(kind, what):
    """See the script for what is held by default: 10,000 locks for ten minutes on a busier machine.

    They are held for longer than a lease: those that are not renewed are lost, and more time would
    show nothing else. Fewer are held where thousands take minutes: a seat takes several requests,
    SQLite and etcd write each lock to the disk. Other tests run meanwhile, too, and a server that
    gets no processor for a whole lease is right to end it: so few processes compute.
    """
    holds = "200" if what else {"sqlite": "1000", "etcd": "500"}.get(kind, "2000")
    # A server of etcd that shares two processors with all of these may be silent for 10 s.
    lease = 30 if kind == "etcd" else 15
    options = ["--holds", holds, "--seconds", f"{lease + 5}", "--lease", f"{lease}", *what]
    run = [sys.executable, str(_BENCHMARK), kind, "--busy", "2", *options]
    done = subprocess.run([*run, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
