"""Runs a program, and all that it starts, for no longer than a lock is held.

A watchdog process stands between the holder of the lock and the program. It runs without Django:
what it uses imports nothing but the standard library and the clock.
"""
