"""What a process does with locks: who holds them here, who waits, renewal, losses.

manager          the way into a lock and out of it, for threads and tasks
call_site        the user's line that asks for a lock
acquiring        the steps from a request to a lease, and of entering again
extending        the steps of ``extend()``
local_queue      threads and tasks of this process wait here, first come, first served
waiting_counts   tells other processes how many wait here
held             one lock held by one owner: its lease, and until when it lasts
entrant          one who is inside a hold, and by which options
registry         all holds of the process
renewal          renews leases, and finds and tells losses: ``LeaseRenewer.tell_loss()``
renewal_steps    renews many leases some at a time, the nearest to its end first
events           log lines, signals and ``on_lost`` callbacks
interrupters     end a body with LockLost
base_lock        what every lock-like object does: acquire, release, decorator, looking
blocks           ``with`` and ``async with`` of all of them, and ``attempt()``; whose block ends;
                 messages that say who has a lock
run_under        runs a function under a lock, for tasks and commands
shared_options   what semaphores and read/write locks share, and their arguments
options          the arguments of ``Lock``, checked
decorator        ``@Lock(...)``
name_template    names such as ``"report:{account_id}"``
row_names        the names of the locks of rows, for ``Lock.of()``
queueing_owners  the owners of the queueing locks of Celery tasks
until_commit     ``release="commit"``: open transactions enter a hold that is left in them; the
                 warning without it
"""
