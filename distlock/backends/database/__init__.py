"""Locks in the project's own database."""

from distlock.backends.database.lock import DatabaseBackend

__all__ = ["DatabaseBackend"]
