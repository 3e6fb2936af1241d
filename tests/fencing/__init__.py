"""Writes on condition of a fencing token."""
