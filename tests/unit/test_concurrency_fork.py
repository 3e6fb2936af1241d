"""Hooks run at a fork in a known order, and none keeps another from running."""

import gc
import os
import weakref

from distlock.concurrency import fork
from tests.children import write_line

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
