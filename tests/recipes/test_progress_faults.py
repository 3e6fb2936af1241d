"""Workers that are stopped past their lease, transactions that are rolled back, outages."""

import signal
import time
from contextlib import suppress

import pytest
from django.db import connections, transaction

from distlock.recipes import Progress
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.databases import ALIASES
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_seats_faults import stop

pytestmark = pytest.mark.once


def work(name):
    """As a child: advance at each line of the input."""
    with Progress(name, 10) as progress:
        write_line("begun")
        while read_line() != "end":
            progress.advance()
            write_line("advanced")


def work_steadily(name):
    """As a child: advance until asked to end."""
    with Progress(name) as progress:
        write_line("begun")
        while True:
            progress.advance()
            time.sleep(0.01)


class Rollback(Exception):
    """Ends a transaction."""


def work_and_roll_back(name, alias):
    """As a child: report within a transaction that fails."""
    with suppress(Rollback), transaction.atomic(using=alias):
        connections[alias].cursor().execute("SELECT 1")
        with Progress(name) as progress:
            progress.advance()
            write_line("advanced")
            read_line()
            raise Rollback


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.faults
def test_a_stale_attempt_cannot_write(child, kind, using, long_leases, name):
    stopped = child(work, name)
    stopped.line()
    stopped.tell("row")
    stopped.line()
    eventually(lambda: Progress.get(name).done == 1)
    stop(stopped, kind)
    eventually(lambda: Progress.get(name).state == "lost")
    before = Progress.get(name).attempt
    long_leases()
    with Progress(name, 10) as successor:
        for line in ("row", "row", "end"):
            stopped.tell(line)
        stopped.signal(signal.SIGCONT)
        stopped.finish()
        report = Progress.get(name)
        assert (report.state, report.done, report.attempt) == ("running", 0, before + 1)
        successor.advance(3)
    assert (Progress.get(name).state, Progress.get(name).done) == ("done", 3)


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.slow
def test_one_that_was_stopped_is_seen_again(child, kind, using, name):
    stopped = child(work, name)
    stopped.line()
    stop(stopped, kind)
    eventually(lambda: Progress.get(name).state == "lost")
    stopped.signal(signal.SIGCONT)
    stopped.tell("row")
    report = eventually(
        lambda: (found := Progress.get(name)).state == "running" and found.done and found
    )
    assert report.done == 1
    assert report.attempt > 1  # a slow machine may stand still once more
    stopped.tell("end")
    stopped.finish()
    assert Progress.get(name).state == "done"


@pytest.mark.shared
@pytest.mark.slow
def test_another_process_is_asked_to_end(child, using, name):
    worker = child(work_steadily, name)
    worker.line()
    assert Progress(name).cancel()
    assert worker.wait() != 0
    assert "Cancelled" in worker.errors
    assert Progress.get(name).state == "cancelled"


@pytest.mark.shared
@pytest.mark.faults
def test_a_report_is_no_part_of_the_transaction_of_its_worker(child, kind, using, name):
    worker = child(work_and_roll_back, name, ALIASES.get(kind, "default"))
    worker.line()
    # On SQLite that is done later, on a thread that is in no transaction.
    eventually(lambda: (found := Progress.get(name)) and found.done == 1)
    worker.tell("roll back")
    worker.finish()
    report = Progress.get(name)
    assert (report.state, report.done, report.error) == ("failed", 1, "Rollback")


@pytest.mark.shared
@pytest.mark.slow
def test_it_never_falls_while_many_look(child, using, name):
    worker = child(work_steadily, name)
    worker.line()
    last, until = 0, time.monotonic() + 10
    for report in Progress(name).changes(PATIENCE):
        assert report.done >= last
        last = report.done
        if time.monotonic() > until:
            break
    assert last > 100


@pytest.mark.shared
@pytest.mark.slow
def test_an_outage_does_not_fail_the_work(proxy, name, caplog):
    if proxy is None:
        return  # a file, which no network leads to
    with Progress(name) as progress:
        seen = iter(Progress(name).changes(PATIENCE))
        progress.advance()
        eventually(lambda: next(seen).done == 1)
        proxy.refuse()
        progress.advance()
        eventually(lambda: "cannot be reported now" in caplog.text)
        began = time.monotonic()
        for _ in range(1000):
            progress.advance()
        assert time.monotonic() - began < PATIENCE  # it waits for nobody
        proxy.heal()
        eventually(lambda: next(seen).done == 1002)
    assert Progress.get(name).state == "done"
    told = [one for one in caplog.messages if "cannot be reported now" in one]
    assert len([one for one in told if name in one]) == 1
