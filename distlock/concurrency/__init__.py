"""The base of waiting, threads and clean-up in this package. One of each.

clock       the clock that leases are counted on, the time left until a deadline, growing pauses
pending     ``Latch``, which wakes one thread, and ``Pending``, an answer that will come
threads     how our daemon threads are started, and the queue in which they wait for work;
            ``call_after()``: actions at a later time, on one thread of the process
workers     ``WorkerThreads``, which run blocking calls
fork        which process this is; the child of a fork is another one
work        the piece of work that a thread is doing (a request, a job of an executor), which tasks
            await it, and which thread waits for a task
reentry     refuses what signal handlers and destructors begin inside of something else
steps       one body for synchronous and asynchronous callers

Nothing here knows of locks. It imports nothing of the package but ``distlock.exceptions``.
"""
