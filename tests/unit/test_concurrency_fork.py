"""Hooks run at a fork in a known order, and none keeps another from running."""

import gc
import os
import weakref

import pytest

from distlock.concurrency import fork


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Let a test have a registry of its own."""
    monkeypatch.setattr(fork, "_before", [])
    monkeypatch.setattr(fork, "_in_parent", [])
    monkeypatch.setattr(fork, "_in_child", {})


class Thing:
    def __init__(self, name, said):
        self.name = name
        self.said = said
        fork.reset_in_child(self)

    def after_fork_in_child(self):
        self.said(self.name)


def fork_once(tell):
    """Fork and return what the child, and the parent, told."""
    reading, writing = os.pipe()
    told = []
    tell.append(lambda text: (os.write(writing, f"{text} ".encode()), told.append(text)))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read().split(), told


def test_hooks_run_in_the_order_of_their_registration_and_before_a_fork_in_reverse():
    tell = []
    things = []

    def write_line(text):
        tell[0](text)

    things.append(Thing("first", write_line))
    fork.in_child(lambda: write_line("second"))
    things.append(Thing("third", write_line))
    for name in ("a", "b"):
        fork.before(lambda name=name: write_line(f"before-{name}"))
        fork.in_parent(lambda name=name: write_line(f"parent-{name}"))
    everything, parents = fork_once(tell)
    assert parents == ["before-b", "before-a", "parent-a", "parent-b"]
    child = [text for text in everything if text not in parents]
    assert child == ["first", "second", "third"]


def test_an_object_is_not_kept_alive():
    thing = Thing("thing", print)
    known = weakref.ref(thing)
    assert len(fork._in_child) == 1
    del thing
    gc.collect()
    assert known() is None
    assert not fork._in_child


def test_none_is_deleted_before_its_own_hook_has_run():
    said = []

    class Owner:
        def __init__(self):
            fork.reset_in_child(self)  # before what it owns
            self.owned = Thing("owned", said.append)
            weakref.finalize(self.owned, said.append, "deleted")

        def after_fork_in_child(self):
            del self.owned
            said.append("owner")

    owner = Owner()
    fork._run_in_child()
    assert said == ["owner", "owned", "deleted"]
    del owner


def test_a_hook_that_fails_keeps_no_other_from_running():
    said = []
    things = [Thing("first", said.append)]
    fork.in_child(lambda: 1 / 0)
    things.append(Thing("second", said.append))
    with pytest.raises(ZeroDivisionError):
        fork._run_in_child()
    assert said == ["first", "second"]


def test_hooks_are_decorators():
    @fork.in_child
    def hook():
        return "hook"

    assert hook() == "hook"
    assert fork.before(hook) is fork.in_parent(hook) is hook
