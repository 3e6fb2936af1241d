"""A child of a fork has nothing of its parent's, from its first look at the process on."""

import gc
import os
import sys
import threading
import weakref
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

import pytest

from distlock import Lock, conf, locks
from distlock.concurrency import fork
from distlock.concurrency.threads import call_after
from distlock.concurrency.workers import WorkerThreads
from tests.children import write_line
from tests.contract.forks import fork_without_hooks, forked
from tests.core.interrupting import interrupted, moments_of

# Nearly each test has a process of its own: hooks stay for as long as the process.


class Thing:
    """Has a connection."""

    def __init__(self, name):
        self.name = name
        fork.current().connections.add(self)

    def leave_to_parent(self):
        write_line(self.name)


def fork_once():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def register_hooks():
    fork.in_child(lambda: write_line("first"))
    thing = Thing("thing")
    fork.in_child(lambda: write_line("second"))
    fork_once()
    del thing


def drop_an_object():
    thing = Thing("thing")
    known = weakref.ref(thing)
    del thing
    gc.collect()
    write_line(known() is None)
    fork_once()


def have_an_owner_that_deletes():
    class Owner(Thing):
        def __init__(self):
            super().__init__("owner")
            self.owned = Thing("owned")
            self.owned.owner = weakref.ref(self)
            weakref.finalize(self.owned, write_line, "deleted").atexit = False

        def leave_to_parent(self):
            super().leave_to_parent()
            vars(self).pop("owned", None)

    owner = Owner()
    fork_once()
    del owner.owned


def register_some_that_fail():
    class Failing(Thing):
        def leave_to_parent(self):
            raise ZeroDivisionError

    things = [Failing(""), Thing("thing"), Failing("")]
    fork.in_child(lambda: write_line("first"))
    fork.in_child(lambda: 1 / 0)
    fork.in_child(lambda: write_line("second"))
    fork_once()
    del things


def decorate():
    @fork.in_child
    def hook():
        return "hook"

    write_line(hook())


def test_connections_are_dropped_before_the_hooks_run_in_order(child):
    assert child(register_hooks).finish() == ["thing", "first", "second"]


def test_an_object_with_a_connection_is_not_kept_alive(child):
    assert child(drop_an_object).finish() == ["True"]


def test_none_is_deleted_before_its_connection_was_dropped(child):
    in_parent = "deleted"
    told = child(have_an_owner_that_deletes).finish()
    assert sorted(told[:2]) == ["owned", "owner"]
    assert told[2:] == ["deleted", in_parent]


def test_what_fails_keeps_no_other_from_running(child):
    process = child(register_some_that_fail)
    assert process.finish() == ["thing", "first", "second"]
    assert "ZeroDivisionError" in process.errors


def test_in_child_is_a_decorator(child):
    assert child(decorate).finish() == ["hook"]


# What there is once in each process


def test_each_process_has_one_of_its_own(way):
    made = fork.PerProcess(lambda: [os.getpid()])
    own = made()

    def look():
        grandchild = forked(lambda: (made(), made() is made()), way=way)
        return made(), made() is own, grandchild[0] == made(), grandchild[1]

    seen, *same = forked(look, way=way)
    assert seen != own
    assert same == [False, False, True]
    assert made() is own


def test_the_process_itself_is_another_one(way):
    parent = fork.current()
    assert parent is fork.current()
    assert parent.pid == os.getpid()
    assert forked(lambda: (fork.current() is parent, fork.current().pid == os.getpid()), way=way)
    assert forked(lambda: fork.current() is not parent and fork.current() is fork.current())


def test_threads_that_come_first_at_once_get_the_same_one():
    line, got = threading.Barrier(8), []

    def make():
        line.wait(30)  # each of them makes one
        return object()

    made = fork.PerProcess(make)
    threads = [threading.Thread(target=lambda: got.append(made())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert set(got) == {made()}


def test_one_that_cannot_be_made_is_made_by_the_next_who_asks():
    shortages = [MemoryError]

    def make():
        if shortages:
            raise shortages.pop()
        return "made"

    made = fork.PerProcess(make)
    with pytest.raises(MemoryError) as caught:
        made()
    assert caught.value.__context__ is None
    assert made() == "made"


def test_one_that_an_object_has_of_its_own_does_not_keep_it_alive():
    class Owner:
        def __init__(self):
            self.state = fork.PerProcess(list)
            self.state().append(1)

    owner = Owner()
    known = weakref.ref(owner)
    del owner
    assert known() is None


def test_what_is_of_the_parent_is_not_deleted_in_the_child(way):
    class Part:
        def __del__(self):
            deleted.append(os.getpid())

    deleted, made = [], fork.PerProcess(Part)
    made()

    def use():
        made()
        gc.collect()
        return list(deleted)

    assert forked(use, way=way) == []


@pytest.mark.parametrize("first", [False, True], ids=["one", "two in a row"])
def test_an_interrupt_of_a_child_that_begins_leaves_it_to_the_next_look(monkeypatch, first):
    """At any moment of it: the child is one process then, without connections, and can work.

    With ``first`` there is one more before, at a moment that is always the same.
    """

    class Counted:
        def __init__(self):
            self.left, self.interrupts = 0, False
            fork.current().connections.add(self)

        def leave_to_parent(self):
            if self.interrupts:
                raise KeyboardInterrupt
            self.left += 1

    def begin():
        """In the child, take this for the first look."""
        fork._process = parent
        parent.children.clear()
        return fork.current()

    def look():
        for one in {*parent.connections} - {thing}:
            one.leave_to_parent()
            parent.connections.discard(one)
        for moment in range(1, moments_of(begin) + 1):
            thing.left, thing.interrupts, seen = 0, first, []
            with suppress(KeyboardInterrupt):  # where the second one comes too late
                interrupted(begin, moment)
            thing.interrupts = False
            other = threading.Thread(target=lambda: seen.append(fork.current()))  # noqa: B023
            other.start()
            seen.append(fork.current())
            other.join(10)
            if len({*seen, fork.current()} - {parent}) != 1 or len(seen) != 2 or not thing.left:
                return moment
            with Lock("stock", using="local", timeout=5) as lock:
                lock.verify()
        return "begun"

    monkeypatch.setattr(fork, "_keep_threads", int)  # it has a moment for each object there is
    with Lock("stock", using="local"):
        # Each of those that other tests have left would have hundreds of moments.
        monkeypatch.setattr(conf, "all_backends", [locks["local"]])
        parent, thing = fork.current(), Counted()
        assert forked(look) == "begun"


# Forks without hooks


def forked_without_hooks():
    """Fork as C code does; return whether this is the child."""
    pid = fork_without_hooks()
    if pid:
        os.waitpid(pid, 0)
    return not pid


def reset_in_several_threads():
    begun, go_on, over = threading.Event(), threading.Event(), []

    @fork.in_child
    def reset():
        assert fork.current() is fork.current()  # a hook may use what does this
        begun.set()
        go_on.wait(30)
        write_line("reset")

    def use():
        fork.current()
        over.append(threading.current_thread())

    fork.current()
    if forked_without_hooks():
        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait(30)
        write_line(len(over))
        go_on.set()
        for thread in threads:
            thread.join()
        fork.current()
        write_line(len(over))


def reset_while_a_thread_is_about_to():
    looked, go_on = threading.Event(), threading.Event()

    def stop(frame, event, arg):
        code = frame.f_code
        if code.co_filename == fork.__file__ and code.co_name != "current":
            looked.set()
            go_on.wait(30)

    def use():
        sys.settrace(stop)
        fork.current()
        sys.settrace(None)

    fork.in_child(lambda: write_line("reset"))
    if forked_without_hooks():
        late = threading.Thread(target=use)
        late.start()
        looked.wait(30)
        fork.current()
        go_on.set()
        late.join()


def fork_in_a_child():
    fork.in_child(lambda: write_line("reset"))
    if forked_without_hooks():
        if forked_without_hooks():
            fork.current()
            fork_once()
            fork.current()
            write_line("grandchild")
            os._exit(0)
        fork.current()
        write_line("child")
        os._exit(0)
    fork.current()


def fail_in_a_child_without_hooks():
    fork.in_child(lambda: 1 / 0)
    fork.in_child(lambda: write_line("second"))
    if forked_without_hooks():
        fork.current()
        write_line("goes on")


def end_a_child():
    fork.at_exit(lambda: write_line("ended"))
    fork.in_child(lambda: write_line("reset"))
    forked_without_hooks()


def wait_at_many_addresses():
    """As the threads of an application in a worker: wait in as many places as have a list."""
    kept = []
    for _ in range(8):
        queues = [SimpleQueue() for _ in range(128)]
        threads = [threading.Thread(target=queue.get) for queue in queues]
        for thread in threads:
            thread.start()
        for queue, thread in zip(queues, threads, strict=True):
            queue.put(None)
            thread.join()
        kept += queues


def fork_while_our_threads_wait():
    workers = WorkerThreads(None, "workers")
    jobs = [workers.submit(partial(int, 7)) for _ in range(8)]
    assert [job.take() for job in jobs if job.wait(None)] == [7] * 8
    call_after(60, int)
    if forked_without_hooks():
        wait_at_many_addresses()
        write_line("waited")


def test_our_threads_leave_nothing_in_a_child_that_could_crash_it(child):
    """From Python 3.13 on who waits in a SimpleQueue is in a list of the process by its address."""
    assert child(fork_while_our_threads_wait).finish() == ["waited"]


def test_without_hooks_of_python_all_is_reset_once_and_threads_wait_for_it(child):
    assert child(reset_in_several_threads).finish() == ["0", "reset", "4"]


def test_a_thread_that_has_seen_the_old_pid_resets_nothing_again(child):
    assert child(reset_while_a_thread_is_about_to).finish() == ["reset"]


def test_each_process_in_a_row_is_reset(child):
    in_grandchild = ["reset", "reset", "grandchild"]  # the second one in a child of its own
    assert child(fork_in_a_child).finish() == [*in_grandchild, "reset", "child"]


def test_a_hook_that_fails_fails_nobody_who_uses_the_child(child):
    process = child(fail_in_a_child_without_hooks)
    assert process.finish() == ["second", "goes on"]
    assert "ZeroDivisionError" in process.errors


def test_all_is_reset_before_what_is_done_at_the_end_of_a_child(child):
    assert child(end_a_child).finish() == ["reset", "ended", "ended"]
