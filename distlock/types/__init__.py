"""The values that all rooms share. They import nothing above them.

lease      owner, claim, lease, and what a backend knows of a lock
owners     who the current thread or task is
query      a page of the locks in use
names      what may be the name of a lock or an owner
arguments  checks of the arguments of ``Lock``
printable  text of unknown origin, made safe to print
"""
