"""What the package builds its waiting, threads and clean-up on. One of each.

clock       the clock that leases are counted on, and the time left until a deadline
pending     ``Latch``, which wakes one thread, and ``Pending``, an answer that will come
threads     how our daemon threads are started
workers     ``WorkerThreads``, which run blocking calls
wait_queue  the queue in which threads wait for work
timers      ``call_after()``: actions at a later time, on one thread of the process
backoff     growing pauses between two attempts
fork        which process this is; the child of a fork is another one
work        the piece of work that a thread is doing: a request, a job of an executor
awaiting    which tasks await a job of an executor, and which thread waits for a task
reentry     refuses what signal handlers and destructors begin inside of something else
steps       one body for synchronous and asynchronous callers

Nothing here knows of locks. It imports nothing of the package but ``distlock.exceptions``.
"""
