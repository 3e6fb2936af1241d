"""People who take locks: each a thread, an asyncio task, or a process of its own.

An actor does what it is told one thing after another, always as the same owner, and hands back
futures. So one test, written once, tells of threads, of tasks and of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import queue
import threading
from concurrent.futures import Future

from distlock import Lock, LockError, LockUnavailable
from distlock.concurrency.clock import clock
from distlock.recipes import RWLock, Semaphore

#: how long, in seconds, a test waits for what must come; never part of what it proves
PATIENCE = 30.0
#: of a lease or time limit, in seconds: a busy machine may not answer before it is over
BRIEF = 1.0


#: what actors can be told to make
MAKERS = {
    "lock": Lock,
    "semaphore": Semaphore,
    "reader": lambda name, **options: RWLock(name, **options).reader(),
    "writer": lambda name, **options: RWLock(name, **options).writer(),
}


def answered(call):
    """Return what ``call()`` returns; repeat it where a brief time was over before the answer."""
    end = clock() + PATIENCE
    while True:
        try:
            return call()
        except LockUnavailable:
            if clock() > end:
                raise


class Handle:
    """A Lock that belongs to an actor: every member is used as that actor.

    ``start(member, ...)`` returns a future; every other method and property waits for its result.
    """

    def __init__(self, actor, number):
        self._actor = actor
        self._number = number

    def start(self, member, *args, **kwargs):
        return self._actor.start(self._number, member, *args, **kwargs)

    def _do(self, member, *args, **kwargs):
        return self.start(member, *args, **kwargs).result(PATIENCE)

    #: for members that only some kinds of locks have
    do = _do

    def acquire(self, *args, **kwargs):
        return self._do("acquire", *args, **kwargs)

    def release(self):
        return self._do("release")

    def locked(self):
        return self._do("locked")

    def check(self):
        return self._do("check")

    def verify(self):
        return self._do("verify")

    def info(self):
        return self._do("info")

    def force_release(self, token):
        return self._do("force_release", token)

    @property
    def held(self):
        return self._do("held")

    @property
    def token(self):
        return self._do("token")

    @property
    def remaining(self):
        return self._do("remaining")


class Actor:
    """Whoever takes locks in a test."""

    def __init__(self, using):
        self.using = using
        self._numbers = itertools.count(1)

    def lock(self, name, **options):
        """Return a new Lock that this actor uses."""
        number = next(self._numbers)
        self.start(number, "new", name, **{"using": self.using, **options}).result(PATIENCE)
        return Handle(self, number)

    def take(self, name, **options):
        """Return a new Lock that this actor has acquired at once."""
        handle = self.lock(name, **options)

        def acquire():
            return handle.acquire(timeout=PATIENCE)

        brief = (options.get("lease") or PATIENCE) <= 2 * BRIEF
        assert answered(acquire) if brief else acquire()
        return handle

    def tries(self, name, **options):
        """Return whether this actor can take the lock now; a lock it got, it leaves again."""
        handle = self.lock(name, **options)
        if got := handle.acquire(blocking=False):
            handle.release()
        return got

    def start(self, number, member, /, *args, **kwargs):
        future = Future()
        future.set_running_or_notify_cancel()
        self.send((number, member, args, kwargs), future)
        return future

    def send(self, command, future):
        raise NotImplementedError

    def leave(self):
        """Begin to give up every lock still held; return a future."""
        return self.start(0, "leave")

    def end(self):
        """End, whatever is still held."""
        raise NotImplementedError


def part(actors):
    """Let all of them leave, at once: one may be waiting for another's lock."""
    there = [actor for actor in actors if not actor.ended]
    for leaving in [actor.leave() for actor in there]:
        leaving.result(PATIENCE)


def perform(locks, command):
    """Do what an actor was told, as the calling thread."""
    number, member, args, kwargs = command
    if member == "new":
        locks[number] = MAKERS[kwargs.pop("make", "lock")](*args, **kwargs)
        return None
    if member == "leave":
        return leave(locks)
    if member == "call":
        function, *args = args
        return function(*args, **kwargs)
    found = getattr(locks[number], member)
    return found(*args, **kwargs) if callable(found) else found


async def aperform(locks, command):
    """Do what an actor was told, as the current task, with the async twin of each method."""
    number, member, args, kwargs = command
    if member == "leave":
        return await aleave(locks)
    if hasattr(locks.get(number), "a" + member):
        member = "a" + member
    result = perform(locks, (number, member, args, kwargs))
    return await result if inspect.isawaitable(result) else result


def leave(locks):
    for lock in locks.values():
        with contextlib.suppress(LockError):
            while True:
                lock.release()
    locks.clear()


async def aleave(locks):
    for lock in locks.values():
        with contextlib.suppress(LockError):
            while True:
                await lock.arelease()
    locks.clear()


class ThreadActor(Actor):
    """An actor that is a thread."""

    def __init__(self, using):
        super().__init__(using)
        # Not a SimpleQueue: see idle_executors_at_rest().
        self._commands = queue.Queue()
        self.thread = threading.Thread(target=self._run, name="actor", daemon=True)
        self.thread.start()

    def send(self, command, future):
        self._commands.put((command, future))

    def call(self, function, *args, **kwargs):
        """Start ``function`` on this actor's thread."""
        return self.start(0, "call", function, *args, **kwargs)

    def end(self):
        """Let the thread end as it is, whatever it holds."""
        self._commands.put(None)
        self.thread.join(PATIENCE)

    @property
    def ended(self):
        return not self.thread.is_alive()

    def _run(self):
        locks = {}
        while item := self._commands.get():
            command, future = item
            try:
                future.set_result(perform(locks, command))
            except BaseException as error:
                future.set_exception(error)


class Loop:
    """An event loop that runs on a thread of its own."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self.thread.start()

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        self.loop.close()


class TaskActor(Actor):
    """An actor that is an asyncio task."""

    def __init__(self, using, loop):
        super().__init__(using)
        self._loop = loop.loop
        self._commands = asyncio.Queue()
        self._busy = False
        self._run_future = asyncio.run_coroutine_threadsafe(self._started(), self._loop)
        self.task = self._run_future.result(PATIENCE)

    def send(self, command, future):
        self._loop.call_soon_threadsafe(self._commands.put_nowait, (command, future))

    def call(self, function, *args, **kwargs):
        """Start the coroutine function ``function`` in this actor's task."""
        return self.start(0, "call", function, *args, **kwargs)

    def cancel(self):
        """Cancel what the task was told last, as ``asyncio.Task.cancel`` does."""
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop)

    def end(self):
        """Let the task finish as it is, whatever it holds."""
        self._loop.call_soon_threadsafe(self._commands.put_nowait, None)
        asyncio.run_coroutine_threadsafe(_over(self.task), self._loop).result(PATIENCE)

    @property
    def ended(self):
        return self.task.done()

    async def _started(self):
        return asyncio.create_task(self._run())

    async def _cancel(self):
        async with asyncio.timeout(PATIENCE):
            while not self._busy:  # it may not have heard yet what it is to do
                await asyncio.sleep(0)
        self.task.cancel()

    async def _run(self):
        locks = {}
        while item := await self._commands.get():
            command, future = item
            self._busy = True
            try:
                future.set_result(await aperform(locks, command))
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    asyncio.current_task().uncancel()
                future.set_exception(error)
            finally:
                self._busy = False


async def _over(task):
    await asyncio.wait([task])
