"""Management commands under a lock, and the commands of ``manage.py locks``."""

from distlock.commands.locked import LockedCommand

__all__ = ["LockedCommand"]
