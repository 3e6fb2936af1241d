"""An actor that is a process: a child that does what it reads, one line after another."""

import base64
import json
import pickle
import queue
import threading
import traceback
from contextlib import contextmanager

from django.conf import settings

from tests.children import Child, read_line, write_line
from tests.contract.actors import PATIENCE, Actor, TaskActor, ThreadActor, part, perform


class ProcessActor(Actor):
    """An actor that is the main thread of a child process."""

    def __init__(self, using):
        super().__init__(using)
        self.child = Child("tests.contract.actor_process:serve")
        self.ended = False
        # Not a SimpleQueue: see idle_executors_at_rest().
        self._pending = queue.Queue()
        threading.Thread(target=self._read, name="actor-process", daemon=True).start()

    @property
    def pid(self):
        return self.child.pid

    def send(self, command, future):
        self._pending.put(future)
        self.child.tell(packed(command))

    def call(self, function, *args, **kwargs):
        """Start ``function`` of a module's top level in the child."""
        return self.start(0, "call", function, *args, **kwargs)

    def end(self):
        """Kill the process as it is, whatever it holds."""
        self.ended = True
        self._pending.put(None)
        self.child.close()

    def _read(self):
        while future := self._pending.get():
            try:
                succeeded, result = unpacked(self.child.line(4 * PATIENCE))
            except BaseException as error:
                succeeded, result = False, error
            if not succeeded:
                result.add_note(f"The process's stderr:\n{self.child.errors}")
            (future.set_result if succeeded else future.set_exception)(result)


class Processes:
    """Processes that go from test to test, as long as the tests want the same backends."""

    def __init__(self):
        self._all = set()
        self._idle = []
        self._settings = None

    def take(self, using):
        """Return an idle process with the settings of this moment, or a new one."""
        wanted = json.dumps([settings.DISTLOCK, settings.DATABASES], default=str)
        if wanted != self._settings:
            self.close()
            self._settings = wanted
        if not self._idle:
            new = ProcessActor(using)
            self._all.add(new)
            return new
        process = self._idle.pop()
        process.using = using
        return process

    def keep(self, actor):
        """Keep an actor for the next test if it came from here and still runs."""
        if actor not in self._all or actor.ended:
            return False
        self._idle.append(actor)
        return True

    def close(self):
        self._all.clear()
        while self._idle:
            self._idle.pop().end()


@contextmanager
def actors(loop, processes=None):
    """Make actors meanwhile: ``make("thread")``, ``"task"``, ``"process"`` or ``"new process"``.

    At the end they leave the locks that they hold. ``processes`` are those to take from.
    """
    made = []

    def make(what="thread", using="default"):
        if what == "thread":
            new = ThreadActor(using)
        elif what == "task":
            new = TaskActor(using, loop)
        elif what == "process" and processes:
            new = processes.take(using)
        else:
            new = ProcessActor(using)
        made.append(new)
        return new

    yield make
    try:
        part(made)
    except BaseException:
        for one in made:
            one.end()
        raise
    for one in made:
        if not (processes and processes.keep(one)):
            one.end()


def serve():
    """Be the actor: read commands, answer with the result or the exception."""
    locks = {}
    while True:
        try:
            command = unpacked(read_line())
        except EOFError:
            return
        try:
            answer = True, perform(locks, command)
        except BaseException as error:
            traceback.print_exc()
            answer = False, error
        write_line(packed(answer))


def packed(thing):
    return base64.b64encode(pickle.dumps(thing)).decode()


def unpacked(line):
    return pickle.loads(base64.b64decode(line))
