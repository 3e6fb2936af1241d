"""Values that all rooms share, and checks of them. They import nothing above them.

lease      owner, claim, lease, and what a backend and the log know of a lock
owners     who the current thread or task is, and in which line it asks; owners of queueing locks
query      a page of the locks in use
values     checks of names, times and other arguments; values as JSON: what is refused, and what
           cannot be read; and text that is safe to print
"""
