"""The locks of users: locks, semaphores, read/write locks, several locks at once.

lock          Lock: arguments, ``atomic()``, ``extend()``
shared        Semaphore: at most so many at a time; RWLock: many readers, or one writer
multilock     MultiLock: several locks at once, all of them or none
parts         the locks that are held together, and how they are left
base_lock     what all of them do: acquire, release, decorator, looking; ``twins()``: a method for
              threads and its twin for tasks, made of one body
blocks        ``with`` and ``async with`` of all of them, ``attempt()`` and ``@Lock(...)``; whose
              block ends; messages that say who has a lock
options       the arguments of ``Lock``, checked
run_under     runs a function under a lock, or a slot of a semaphore, for tasks and commands; ends
              it with LockLost
until_commit  ``release="commit"``: open transactions enter a hold that is left in them; the
              warning without it
"""
