"""Waiting for a lock of a database in the engine's own lock queue.

**Two sources of truth.** The engine's advisory locks (PostgreSQL) or named locks (MySQL, MariaDB:
``GET_LOCK``), here called *native locks*, say who is next. The row of the lock in our table says
who holds. A native lock alone never grants anything: losing one costs a place in the queue at
worst, and never lets two in.

**One wait** (``waiter``) runs on a worker thread with a session of its own (``wait_session``):

1. It waits in the server for the native lock of the lock's name. The server grants that to one
   waiter at a time, first come, first served, and forgets those whose connection has ended.
2. With the native lock it is the *head* of the queue. It takes the row if that is free.
3. If the row is held, the holder has no native lock, because it did not have to wait. Nothing
   will wake the head then, so it looks at the row again and again. The others stay asleep.
4. With the row it holds the lock. It keeps the native lock, so that all others sleep in the
   server. Its release frees the row and the native lock in one packet, which wakes the next one.

The caller, a thread or a task, waits on a ``Pending`` for the answer. ``WaitManager.enqueue()`` is
the body for both. It tries once, unless others wait already, and then starts a waiter. It answers
that someone else has the lock only if the database has said so (``HolderEvidence``).

**When those in front do not take a free row.** The head may be stopped, cut off, or held up. The
native lock may be kept for a hold that was broken or has ended. So one thread of the process
(``stall_monitor``) looks at the rows meanwhile. A row that nobody has taken for ``GRACE`` seconds
may be taken by anyone: the monitor cancels the waiter's statement in the server
(``WakeReason.GRANTABLE``), and the waiter tries to take the row out of turn. If another one was
faster, it goes to the end of the queue. The monitor also finds that the server has lost a session,
or does not answer at all.

**Long waits on PostgreSQL.** A statement that waits keeps a snapshot, which VACUUM cannot look
past and for which ``CREATE INDEX CONCURRENTLY`` waits. A waiter that such a statement waits for is
cancelled (``WakeReason.REQUEUE``) and goes to the end of the queue. A waiter that has waited for
``longest_wait`` seconds leaves the queue and looks at the row instead. It takes two shared advisory
locks: the first one says that somebody waits for long, the number of the second one says since
when. While anybody has the first one, the queue does not take the row; of those who have it, the
one who waits longest takes the row.

**When the caller gives up,** the waiter is cancelled (``WakeReason.CANCEL``). Only the statement
that waits is cancelled in the server, never one that writes. A wait that was cancelled ends without
the native lock, and its session is used again, or closed if it does not come back.

**When an answer is lost,** a request to take the row may still be under way. Then the claim is
cancelled, again and again until the server must have noticed that the client is gone. A grant that
nobody takes is given back, at the latest when its lease ends. What a process leaves behind that is
killed, ends with its lease. A claim is never asked for again while a waiter of it may still be at
work.

**Where no session can wait** (a connection pooler lends its sessions to others, too many waits, no
more threads) the row is looked at now and then, and taken only if nobody waits in the queue.
"""
