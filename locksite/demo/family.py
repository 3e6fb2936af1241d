"""What is built on locks and records: who leads, who is there, who waits for whom, what is set."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

from distlock.recipes import Config, Election, Group, Mailbox, Names, Progress
from locksite.demo.models import Counter
from locksite.demo.processes import ANSWER_TIMEOUT, Worker, WorkerPool
from locksite.demo.results import Result

T = TypeVar("T")

LETTERS, MORE_LETTERS = 10, 20
PRICES = 3
STEPS = 40


def one_scheduler(pool: WorkerPool) -> Iterator[Result]:
    """Five candidates; the leader is killed, the next one leads, and then the one after it."""
    election = Election(_new_name())
    with _company(pool.size) as workers:
        for number, worker in enumerate(workers):
            worker.start("lead", election=election.name, candidate=f"worker {number + 1}")
            worker.expect("stands")
            _until(lambda n=number + 1: len(election.candidates()) >= n)
        workers[0].expect("leads")
        leaders = [_leader(election)]
        what = f"{pool.size} candidates, the first one leads"
        yield Result.of(what, "worker 1", leaders[0][0], 14)
        workers[0].kill()
        workers[1].expect("leads")
        leaders.append(_leader(election))
        yield Result.of("It is killed: the next one leads", "worker 2", leaders[1][0], 14)
        workers[1].send_line("resign")
        workers[2].expect("leads")
        leaders.append(_leader(election))
        yield Result.of("It resigns: the next one leads", "worker 3", leaders[2][0], 14)
        election.appoint("worker 5")
        workers[2].send_line("resign")
        workers[4].expect("leads")
        leaders.append(_leader(election))
        yield Result.of("Named by hand", "worker 5", leaders[3][0], 14)
    terms = [term for _, term in leaders]
    seen = "grow" if sorted(set(terms)) == terms else str(terms)
    yield Result.of("Their terms, which are fencing tokens", "grow", seen, 14)


def group_of_workers(pool: WorkerPool) -> Iterator[Result]:
    """Three processes join a group; one is killed, and one leaves."""
    group = Group(_new_name())
    with _company(3) as workers:
        for number, worker in enumerate(workers):
            worker.start("be_member", group=group.name, member=f"worker {number + 1}")
        for worker in workers:
            worker.expect("joined")
        there = group.wait_for(3, timeout=ANSWER_TIMEOUT)
        yield Result.of("3 members waited for", "all there", "all there" if there else "few", 15)
        changes = group.changes(timeout=ANSWER_TIMEOUT)
        joined = {_next(changes).member.name for _ in workers}
        workers[0].kill()
        workers[1].send_line("leave")
        ends = sorted(_next(changes).what for _ in "12")
        yield Result.of("One is killed, one leaves", "crashed, left", ", ".join(ends), 15)
        names = ", ".join(member.name for member in group.members())
        yield Result.of(f"Still there, of {len(joined)}", "worker 3", names, 15)


def all_at_the_barrier(pool: WorkerPool) -> Iterator[Result]:
    """All workers add 1 and meet at a barrier: behind it each sees what all have added."""
    counter = Counter.objects.create()
    name = _new_name()
    try:
        seen = pool.run_all("meet", counter=counter.pk, barrier=name, parties=pool.size)
    finally:
        counter.delete()
    what = f"{pool.size} processes add 1, and meet"
    yield Result.of(what, f"all see {pool.size}", f"all see {min(seen)}", 16)


def mailbox(pool: WorkerPool) -> Iterator[Result]:
    """Ten letters fill the box, its bound is raised, and a worker reads all of them in order."""
    letters = Mailbox(_new_name(), LETTERS)
    try:
        put = _fill(letters, MORE_LETTERS)
        yield Result.of(f"A mailbox of {LETTERS} letters: full after", LETTERS, put, 17)
        letters.resize(MORE_LETTERS)
        put += _fill(letters, MORE_LETTERS, first=put)
        yield Result.of(f"Its bound is raised to {MORE_LETTERS}: full after", MORE_LETTERS, put, 17)
        worker = pool.workers[0]
        worker.start("read_letters", mailbox=letters.name, number=put)
        read = worker.expect("done")
        order = "in order" if read == list(range(put)) else str(read)
        yield Result.of(f"{put} letters read", "in order", order, 17)
        try:
            letters.get(blocking=False).ack()
            seen = "a letter"
        except queue.Empty:
            seen = "empty"
        yield Result.of("Then the box is", "empty", seen, 17)
    finally:
        letters.purge()


def setting_everywhere(pool: WorkerPool) -> Iterator[Result]:
    """A price is set a few times; all workers watch it, and each ends at the last one."""
    price = Config(_new_name())
    price.set(10, reason="the first price")
    for worker in pool.workers:
        worker.start("watch_price", config=price.name, last=10 + PRICES)
        worker.expect("watching")
    versions = [price.set(11 + number, who="the demo") for number in range(PRICES)]
    told = pool.results().count(10 + PRICES)
    what = f"{pool.size} processes watch a setting"
    yield Result.of(what, f"{pool.size} told", f"{told} told", 18)
    price.rollback(1)
    seen = f"version {versions[-1] + 1}: {price.get().value}"
    yield Result.of("Rolled back to the first", f"version {PRICES + 2}: 10", seen, 18)


def name_of_its_own(pool: WorkerPool) -> Iterator[Result]:
    """All workers register one name, and take a number: one has the name, each its own number."""
    names = Names(_new_name())
    results = pool.run_all("register", names=names.name, name="printer")
    registered = sum(registered for registered, _ in results)
    yield Result.of(f"{pool.size} register one name", "1 has it", f"{registered} has it", 19)
    found = names.resolve("printer")
    where = "found" if found is not None and found.address.startswith("ipp://") else "not found"
    yield Result.of("The name, looked up elsewhere", "found", where, 19)
    numbers = {number for _, number in results}
    yield Result.of("Numbers that no one else has", pool.size, len(numbers), 19)
    pool.run_all("unregister")


def live_progress(pool: WorkerPool) -> Iterator[Result]:
    """A worker reports how far it is; it is killed, and another one ends the work."""
    name = _new_name()
    with _company(2) as (first, second):
        first.start("work", progress=name, steps=STEPS, then_wait=True)
        first.expect("waits")
        reports = Progress(name).changes(timeout=ANSWER_TIMEOUT)
        report = _next(report for report in reports if report.done >= STEPS / 2)
        yield Result.of("Progress, seen elsewhere", "running", report.state, 20)
        first.kill()
        report = _next(report for report in reports if report.state != "running")
        yield Result.of("Its worker is killed", "lost", report.state, 20)
        second.start("work", progress=name, steps=STEPS, then_wait=False)
        second.expect("done")
        found = Progress.get(name)
        seen = "none" if found is None else f"{found.state} {found.done:g}"
        yield Result.of("Another one does the work", f"done {STEPS}", seen, 20)


def _new_name() -> str:
    return f"demo:{uuid.uuid4().hex}"


def _next(found: Iterator[T]) -> T:
    """Return what is found next; LookupError if nothing is in time."""
    for one in found:
        return one
    raise LookupError("nothing of it was seen in time")


def _leader(election: Election) -> tuple[str, int]:
    """Return who leads, and its term."""
    leader = election.leader()
    return ("nobody", 0) if leader is None else (leader.name, leader.term or 0)


def _fill(letters: Mailbox, most: int, first: int = 0) -> int:
    """Put letters until the box is full; return how many."""
    for number in range(first, most + 1):
        try:
            letters.put(number, blocking=False)
        except queue.Full:
            return number - first
    return most + 1 - first


def _until(condition: object) -> None:
    ends = time.monotonic() + ANSWER_TIMEOUT
    while time.monotonic() < ends and not condition():  # type: ignore[operator]
        time.sleep(0.05)


@contextmanager
def _company(size: int) -> Iterator[Sequence[Worker]]:
    """Start workers that a scenario may kill."""
    with ExitStack() as stack:
        workers = [stack.enter_context(closing(Worker())) for _ in range(size)]
        for worker in workers:
            worker.expect("ready")
        yield workers
