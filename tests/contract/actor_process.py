"""An actor that is a process: a child that does what it reads, one line after another."""

import base64
import pickle
import queue
import threading
import traceback

from tests.children import hear, say
from tests.contract.actors import PATIENCE, Actor, perform


class ProcessActor(Actor):
    """An actor that is the main thread of a child process; made by the fixture ``child``."""

    def __init__(self, using, child):
        super().__init__(using)
        self.child = child("tests.contract.actor_process:serve")
        self.ended = False
        self._pending = queue.SimpleQueue()
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
        self._pending.put(None)
        self.child.kill()
        self.ended = True

    def _read(self):
        while future := self._pending.get():
            try:
                succeeded, result = unpacked(self.child.line(4 * PATIENCE))
            except BaseException as error:
                succeeded, result = False, error
            if not succeeded:
                result.add_note(f"The process's stderr:\n{self.child.errors}")
            (future.set_result if succeeded else future.set_exception)(result)


def serve():
    """Be the actor: read commands, answer with the result or the exception."""
    locks = {}
    while True:
        try:
            command = unpacked(hear())
        except EOFError:
            return
        try:
            answer = True, perform(locks, command)
        except BaseException as error:
            traceback.print_exc()
            answer = False, error
        say(packed(answer))


def packed(thing):
    return base64.b64encode(pickle.dumps(thing)).decode()


def unpacked(line):
    return pickle.loads(base64.b64decode(line))
