"""Locks in the project's own database."""
