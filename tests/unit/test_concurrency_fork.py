"""Hooks run at a fork in a known order, and none keeps another from running."""

import gc
import os
import sys
import threading
import weakref
from functools import partial
from queue import SimpleQueue

from distlock.concurrency import fork
from distlock.concurrency.timers import call_after
from distlock.concurrency.workers import WorkerThreads
from tests.children import write_line
from tests.contract.forks import fork_without_hooks

# Each test has a process of its own: hooks stay for as long as the process.


class Thing:
    def __init__(self, name):
        self.name = name
        fork.reset_in_child(self)

    def after_fork_in_child(self):
        write_line(self.name)


def fork_once():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def register_hooks():
    things = [Thing("first")]
    fork.in_child(lambda: write_line("second"))
    things.append(Thing("third"))
    fork_once()


def drop_an_object():
    thing = Thing("thing")
    known = weakref.ref(thing)
    del thing
    gc.collect()
    write_line(known() is None)
    fork_once()


def have_an_owner_that_deletes():
    class Owner:
        def __init__(self):
            fork.reset_in_child(self)  # before what it owns
            self.owned = Thing("owned")
            weakref.finalize(self.owned, write_line, "deleted").atexit = False

        def after_fork_in_child(self):
            del self.owned
            write_line("owner")

    owner = Owner()
    fork_once()
    del owner.owned


def register_one_that_fails():
    things = [Thing("first")]
    fork.in_child(lambda: 1 / 0)
    things.append(Thing("second"))
    fork_once()


def decorate():
    @fork.in_child
    def hook():
        return "hook"

    write_line(hook())


def test_hooks_run_in_order_functions_first(child):
    assert child(register_hooks).finish() == ["second", "first", "third"]


def test_an_object_is_not_kept_alive(child):
    assert child(drop_an_object).finish() == ["True"]


def test_none_is_deleted_before_its_own_hook_has_run(child):
    in_parent = "deleted"
    told = child(have_an_owner_that_deletes).finish()
    assert told == ["owner", "owned", "deleted", in_parent]


def test_a_hook_that_fails_keeps_no_other_from_running(child):
    process = child(register_one_that_fails)
    assert process.finish() == ["first", "second"]
    assert "ZeroDivisionError" in process.errors


def test_in_child_is_a_decorator(child):
    assert child(decorate).finish() == ["hook"]


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
        fork.ensure_reset()  # a hook may use what does this
        begun.set()
        go_on.wait(30)
        write_line("reset")

    def use():
        fork.ensure_reset()
        over.append(threading.current_thread())

    fork.ensure_reset()
    if forked_without_hooks():
        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait(30)
        write_line(len(over))
        go_on.set()
        for thread in threads:
            thread.join()
        fork.ensure_reset()
        write_line(len(over))


def reset_while_a_thread_is_about_to():
    looked, go_on = threading.Event(), threading.Event()

    def stop(frame, event, arg):
        code = frame.f_code
        if code.co_filename == fork.__file__ and code.co_name != "ensure_reset":
            looked.set()
            go_on.wait(30)

    def use():
        sys.settrace(stop)
        fork.ensure_reset()
        sys.settrace(None)

    fork.in_child(lambda: write_line("reset"))
    if forked_without_hooks():
        late = threading.Thread(target=use)
        late.start()
        looked.wait(30)
        fork.ensure_reset()
        go_on.set()
        late.join()


def fork_in_a_child():
    fork.in_child(lambda: write_line("reset"))
    if forked_without_hooks():
        if forked_without_hooks():
            fork.ensure_reset()
            fork_once()
            fork.ensure_reset()
            write_line("grandchild")
            os._exit(0)
        fork.ensure_reset()
        write_line("child")
        os._exit(0)
    fork.ensure_reset()


def fail_in_a_child_without_hooks():
    fork.in_child(lambda: 1 / 0)
    fork.in_child(lambda: write_line("second"))
    if forked_without_hooks():
        fork.ensure_reset()
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
