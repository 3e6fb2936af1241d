"""Runs a program, and all that it starts, for no longer than a lock is held.

The guard of a program runs in a process of its own, without Django: what it uses imports nothing
but the standard library and ``distlock.clock``.
"""
