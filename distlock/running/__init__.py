"""Runs a program and all that it starts for no longer than a lock is held.

The guard of a program runs in a process of its own, without Django: nothing here imports more than
the standard library and ``distlock.clock``, but for what says so.
"""
