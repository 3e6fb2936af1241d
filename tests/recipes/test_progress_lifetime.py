"""How long a progress lives: as long as somebody has its object, or until another attempt."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from distlock import Cancelled, locks
from distlock.recipes import Progress
from distlock.registry import KEPT
from distlock.types.lease import Kind
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.forks import forked
from tests.contract.watch import eventually, passed
from tests.recipes.every_kind import SHORT
from tests.recipes.wrapping import cancel_while_asking, grants, in_thread

pytestmark = pytest.mark.usefixtures("reported_often")


def begun_by_a_thread(progress):
    in_thread(progress.start)()


def begun_by_a_task(progress):
    asyncio.run(progress.astart())


def begun_by_a_job(progress):
    """A piece of work that has ended, on a thread that goes on."""
    executor = ThreadPoolExecutor()
    executor.submit(progress.start).result(PATIENCE)


def _session(progress):
    records = progress._store.read(f"{Kind.PROGRESS}:{progress.name}").records.values()
    return next(record.session for record in records if record.session)


def _go_on(progress):
    progress.advance()
    progress.finish()


def test_one_that_was_lost_goes_on_as_a_new_attempt(eager, name):
    with Progress(name) as progress:
        progress.advance()
        before = Progress.get(name)
        locks["default"].store.end_session(_session(progress))
        after = eventually(
            lambda: (
                (report := Progress.get(name)).state == "running"
                and report.token != before.token
                and report
            )
        )
        assert after.attempt == before.attempt + 1
        progress.advance()
        eventually(lambda: Progress.get(name).done == 2)
    assert Progress.get(name).state == "done"


def test_one_that_was_lost_does_not_come_back_after_another(eager, name):
    first = Progress(name).start()
    with Progress(name) as second:
        second.advance(5)
        eventually(lambda: first._state().membership.held is False)
        rejoining = {"distlock-rejoin"}
        eventually(lambda: not rejoining & {one.name for one in threading.enumerate()})
        first.advance()
        eventually(lambda: Progress.get(name).done == 5)
        first.finish()
        report = Progress.get(name)
        assert (report.state, report.attempt, report.done) == ("running", 2, 5)


def test_one_whose_start_was_cancelled_begins_again(local, wrapped, name):
    progress = Progress(name)
    cancel_while_asking(wrapped("apply"), grants, progress.astart, local)
    with progress:
        progress.advance()
        assert Progress.get(name).token is not None
    report = Progress.get(name)
    assert (report.state, report.done) == ("done", 1)


def test_one_that_nobody_has_any_more_is_lost(brief, name):
    Progress(name).start().advance()
    gc.collect()
    assert eventually(lambda: Progress.get(name).state == "lost")


@pytest.mark.parametrize("begun_by", [begun_by_a_thread, begun_by_a_task, begun_by_a_job])
def test_one_outlives_what_has_begun_it(brief, name, begun_by):
    """As long as somebody has the object. Its lease has ended unless it was renewed."""
    progress = Progress(name)
    begun_by(progress)
    passed(1.5 * SHORT)
    progress.advance()
    report = Progress.get(name)
    assert (report.state, report.attempt) == ("running", 1)
    progress.finish()
    report = Progress.get(name)
    assert (report.state, report.done, report.attempt) == ("done", 1, 1)


def test_who_is_asked_to_end_and_lost_is_still_asked_when_it_is_back(eager, name):
    with pytest.raises(Cancelled), Progress(name) as progress:
        token = Progress.get(name).token
        assert Progress(name).cancel()
        locks["default"].store.end_session(_session(progress))
        eventually(lambda: Progress.get(name).token not in (None, token))
        eventually(lambda: progress.check())
    assert Progress.get(name).state == "cancelled"


def fork_and_look(name, way):
    """As a child: let a fork of this process go on with a progress that is reported here."""
    with Progress(name) as progress:
        assert forked(_go_on, progress, way=way) is None
        write_line(Progress.get(name).state)


def test_the_child_of_a_fork_reports_nothing(backend_settings, settings, name, way, child):
    # A fork without hooks needs a moment in which all other threads sleep. In a process of its own
    # there are few others.
    settings.DISTLOCK = backend_settings("sqlite")
    assert child(fork_and_look, name, way).finish() == ["running"]


def test_a_report_is_forgotten_in_time(eager, name, monkeypatch):
    Progress(name).start().finish()
    with Progress("running", total=1):
        locks["default"].shared.sweep()
        assert Progress.get(name).state == "done"
        monkeypatch.setitem(KEPT, Kind.PROGRESS, timedelta())
        locks["default"].shared.sweep()
        assert Progress.get(name) is None
        assert Progress.get("running").state == "running"
    with Progress(name):
        assert Progress.get(name).attempt == 1
