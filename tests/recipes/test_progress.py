"""How far work is, as others see it: on backends of all kinds."""

import asyncio
import gc
import re
import threading
import time

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from distlock import Cancelled, LockError, LockUnavailable, locks
from distlock.recipes import Progress, atrack, bar, track
from distlock.types.lease import Kind
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_queue_reasons import Unprintable
from tests.recipes.wrapping import in_thread

#: except for tests that count reports
pytestmark = pytest.mark.usefixtures("reported_often")


@pytest.fixture
def calm(backend_settings, settings, monkeypatch):
    """A backend in this process whose leases are long, and reports as rare as they are."""
    monkeypatch.undo()
    settings.DISTLOCK = backend_settings("local")
    yield locks["default"]
    locks.close_all()


def import_rows(name, total):
    """As a child: import one row at each line of its input."""
    with Progress(name, total, unit="rows") as progress:
        write_line("begun")
        while read_line() == "row":
            progress.advance()


class Watcher:
    """One who watches a progress on a thread; ``seen`` are the reports.

    It ends with one of the given state and number.
    """

    def __init__(self, name, state, done):
        self.seen, self._last = [], (state, done)
        self._changes = Progress(name).changes(PATIENCE)
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        for report in self._changes:
            self.seen.append(report)
            if (report.state, report.done) == self._last:
                return

    def wait_for(self, state, done):
        """Return the first report with this state and number."""
        return eventually(
            lambda: next(
                (one for one in list(self.seen) if (one.state, one.done) == (state, done)), None
            )
        )


def test_work_reports_how_far_it_is(using, name):
    assert Progress.get(name) is None
    with Progress(name, 10, unit="rows") as progress:
        began = Progress.get(name)
        assert (began.state, began.done, began.total, began.unit) == ("running", 0, 10, "rows")
        assert (began.attempt, began.part, began.eta) == (1, 0, None)
        progress.step("the second file")
        progress.advance()
        progress.advance(3)
        progress.set(2)
        report = eventually(lambda: (found := Progress.get(name)).done == 4 and found)
        assert (report.part, report.step) == (0.4, "the second file")
        assert report.rate > 0
        assert report.eta == pytest.approx(6 / report.rate)
        assert report.token == began.token
        assert report.owner.pid
    ended = Progress.get(name)
    assert (ended.state, ended.done, ended.token, ended.error) == ("done", 4, None, "")


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.faults
def test_progress_is_seen_live_and_is_gone_with_its_worker(child, using, name):
    """The mission's reporting: a controller sees it live, and it vanishes with the worker."""
    worker = child(import_rows, name, 3)
    worker.line()
    watcher = Watcher(name, "lost", 1)
    watcher.wait_for("running", 0)
    worker.tell("row")
    live = watcher.wait_for("running", 1)
    assert live.owner.pid == worker.pid
    worker.kill()
    lost = watcher.wait_for("lost", 1)
    assert lost.token is None
    eventually(lambda: Progress.get(name).state == "lost")  # for good, now that it was killed
    assert Progress(name).cancel() is False
    watcher.thread.join(PATIENCE)  # in the tests that follow it would look elsewhere


def test_work_is_asked_to_end(using, name):
    assert Progress(name).cancel() is False
    with pytest.raises(Cancelled, match=re.escape(name)), Progress(name) as progress:
        token = Progress.get(name).token
        assert Progress(name).cancel(token + 1) is False
        assert not Progress.get(name).cancelling
        assert Progress(name).cancel(token) is True
        assert Progress.get(name).cancelling
        while True:
            progress.advance()
            time.sleep(0.01)
    ended = Progress.get(name)
    assert (ended.state, ended.error, ended.cancelling) == ("cancelled", "", True)


def test_another_attempt_takes_the_place_of_the_first(using, name):
    first, second = Progress(name, 10), Progress(name, 10)
    first.start()
    first.advance(7)
    eventually(lambda: Progress.get(name).done == 7)
    with second:
        second.advance()
        assert Progress.get(name).attempt == 2
        first.advance()
        first.finish()
        assert eventually(lambda: Progress.get(name).done == 1)
        assert (Progress.get(name).state, Progress.get(name).attempt) == ("running", 2)
    assert (Progress.get(name).state, Progress.get(name).done) == ("done", 1)


async def use_progress(name):
    async with Progress(name, 2) as progress:
        progress.advance()
        report = await Progress.aget(name)
        assert report.state == "running"
        assert await Progress(name).acancel(report.token)
        async for seen in Progress(name).achanges():
            if seen.cancelling:
                break
        with pytest.raises(Cancelled):
            while True:
                progress.check()
                await asyncio.sleep(0.01)
    assert [row async for row in atrack(rows(3), name)] == [0, 1, 2]
    report = await Progress.aget(name)
    assert (report.state, report.done, report.attempt) == ("done", 3, 2)


async def rows(count):
    for row in range(count):
        yield row


def test_tasks(using, name, loop):
    asyncio.run_coroutine_threadsafe(use_progress(name), loop.loop).result(PATIENCE)


class TestHere:
    """What has nothing to do with the kind of backend."""

    def test_it_never_falls(self, eager, name, wrapped):
        """A write that a network has kept back comes after the next one, and does nothing."""
        apply, late = wrapped("apply"), []
        with Progress(name, 10) as progress:

            def keep_back(store, *request):
                apply.before = lambda *_: None
                late.append(request)
                raise LockError("no answer")

            apply.before = keep_back
            progress.advance()
            eventually(lambda: late)
            progress.advance()
            eventually(lambda: Progress.get(name).done == 2)
            assert apply.original(progress._store, *late[0]) is None
            assert Progress.get(name).done == 2

    def test_a_million_advances_cost_two_requests_for_each_second(self, calm, name, wrapped):
        Progress("warm").start().finish()  # opens the session
        reads, changes = wrapped("read"), wrapped("apply")  # here a look is a read
        began = time.monotonic()
        with Progress(name, 1_000_000) as progress:
            for _ in range(1_000_000):
                progress.advance()
        seconds = int(time.monotonic() - began)
        assert len(of_name(changes.calls, name)) <= 2 + seconds
        assert len(of_name(reads.calls, name)) <= 1 + seconds
        assert Progress.get(name).done == 1_000_000

    def test_one_who_watches_reads_once_for_each_change(self, calm, name, wrapped):
        with Progress(name) as progress:
            watching, readers = Progress(name).changes(), []
            next(watching)
            wrapped("read").before = lambda *_: readers.append(threading.current_thread().name)
            following = in_thread(next, watching)
            progress.advance()
            assert following().done == 1
            # The worker looks, too.
            assert len([one for one in readers if one != "distlock-progress"]) == 1

    @pytest.mark.parametrize(
        ("error", "told"), [(KeyError("sku 7"), "KeyError: 'sku 7'"), (Unprintable, "Unprintable")]
    )
    def test_an_error_is_told(self, eager, name, error, told):
        with pytest.raises((KeyError, Unprintable)), Progress(name) as progress:
            progress.advance()
            raise error
        report = Progress.get(name)
        assert (report.state, report.error, report.done) == ("failed", told, 1)

    def test_an_outage_does_not_fail_the_work(self, eager, name, wrapped, caplog):
        apply = wrapped("apply")

        def refuse(*_):
            raise LockError("away")

        apply.before = refuse
        with Progress(name, 3) as progress:
            progress.advance()
            eventually(lambda: len(apply.calls) >= 3)
            assert Progress.get(name) is None
            apply.before = lambda *_: None
            eventually(lambda: (report := Progress.get(name)) and report.done == 1)
            before, apply.before = len(apply.calls), refuse
            progress.advance()
            eventually(lambda: len(apply.calls) >= before + 3)
            apply.before = lambda *_: None
            eventually(lambda: Progress.get(name).done == 2)
        assert Progress.get(name).state == "done"
        warnings = [one for one in caplog.messages if "cannot be reported now" in one]
        assert len([one for one in warnings if name in one]) == 2

    def test_a_loop_is_tracked(self, eager, name):
        assert list(track([1, 2, 3], name, unit="rows")) == [1, 2, 3]
        report = Progress.get(name)
        assert (report.state, report.done, report.total, report.unit) == ("done", 3, 3, "rows")
        list(track(iter([1]), name))
        assert Progress.get(name).total is None
        with Progress(name) as progress:
            assert list(track([1, 2], progress)) + list(track([3], progress)) == [1, 2, 3]
        report = Progress.get(name)
        assert (report.state, report.done, report.total, report.attempt) == ("done", 3, 2, 3)
        for _ in track([1, 2, 3], name):
            break
        gc.collect()
        assert eventually(lambda: Progress.get(name).state == "cancelled")

    @pytest.mark.parametrize(
        ("call", "argument"),
        [
            (lambda progress: progress.advance(-1), "n"),
            (lambda progress: progress.advance("1"), "n"),
            (lambda progress: progress.set(10**400), "n"),
            (lambda progress: progress.advance(10**400), "n"),
            (lambda progress: progress.set(float("inf")), "n"),
            (lambda progress: progress.set(float("nan")), "n"),
            (lambda progress: progress.step(7), "text"),
            (lambda progress: progress.finish("lost"), "state"),
            (lambda progress: progress.cancel("7"), "token"),
            (lambda progress: Progress("x", -1), "total"),
            (lambda progress: Progress("x", "7"), "total"),
            (lambda progress: Progress("x", unit=7), "unit"),
            (lambda progress: Progress(""), "name"),
        ],
    )
    def test_what_is_wrong_is_refused_by_name(self, eager, name, call, argument):
        wrong = pytest.raises((TypeError, ValueError), match=f"^{argument} ")
        with Progress(name) as progress, wrong:
            call(progress)
        assert Progress.get(name).done == 0

    @pytest.mark.parametrize(
        ("blocks", "said"),
        [
            (Progress.get, r"Progress\.get\(\) would .*; use `await Progress\.aget\(\)`\."),
            (
                lambda name: next(track([1], name)),
                r"track\(\) would .*; use `async for … in atrack\(\)`\.",
            ),
        ],
        ids=["get", "track"],
    )
    def test_an_event_loop_is_not_blocked(self, eager, name, blocks, said):
        async def main():
            with pytest.raises(SynchronousOnlyOperation, match=f"^{said}$"):
                blocks(name)
            assert await Progress.aget(name) is None
            assert await asyncio.to_thread(list, track([1], name)) == [1]
            async with Progress(name) as progress:
                assert list(track([1, 2], progress)) == [1, 2]  # it has begun, and only counts

        asyncio.run(main())

    def test_long_texts_are_cut(self, eager, name):
        with pytest.raises(ValueError), Progress(name) as progress:
            progress.step("é\n" * 500)
            raise ValueError("x" * 100_000)
        report = Progress.get(name)
        assert len(report.error) == len(report.step) == 200
        assert report.step.isprintable()


def of_name(calls, name):
    """Return the calls that are about one progress."""
    return [call for call in calls if call[0] == f"{Kind.PROGRESS}:{name}"]


class TestBar:
    @pytest.fixture
    def report(self, eager, name):
        with Progress("import", 1000, unit="rows") as progress:
            progress.set(480)
            yield eventually(lambda: (found := Progress.get("import")).rate and found)

    def test_it_fits_the_terminal(self, report):
        for width in range(1, 200):
            assert len(bar(report, width)) <= width
        assert re.match(
            r"import  48% \[#+ +\] 480/1000 rows, [\d.]+/s, 0:00:\d\d left$", bar(report)
        )

    def test_how_it_ended(self, eager, name):
        with pytest.raises(RuntimeError), Progress("import", 2) as progress:
            progress.advance()
            raise RuntimeError("no paper")
        assert bar(Progress.get("import"), 120).endswith("] 1/2, failed: RuntimeError: no paper")

    def test_without_a_total(self, eager, name):
        Progress("import").start().finish()
        assert bar(Progress.get("import")) == "import 0, done"


def test_those_who_watch_see_the_end_of_their_time_also_in_an_outage(calm, wrapped, name):
    """An outage is no error of theirs: it only has nothing to tell."""
    with Progress(name) as progress:
        changes = Progress(name).changes(0.3)
        assert next(changes).state == "running"

        def away(*_):
            raise LockUnavailable("the backend is away")

        reading = wrapped("read")
        reading.before = away
        assert list(changes) == []
        assert list(Progress(name).changes(0)) == []
        reading.before = lambda *_: None
        progress.advance()
