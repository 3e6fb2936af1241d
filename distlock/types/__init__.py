"""Values that all rooms share, and checks of them. They import nothing above them.

lease      owner, claim, lease, and what a backend knows of a lock
owners     who the current thread or task is
query      a page of the locks in use
arguments  checks of names, times and other arguments
log_fields  what records of the log say of a lock, as attributes of their own
json_values  values as JSON: what is refused, and what cannot be read
printable  text of unknown origin, made safe to print
"""
