"""Locks in the project's own database."""

from distlock.backends.database.backend import DatabaseBackend

__all__ = ["DatabaseBackend"]
