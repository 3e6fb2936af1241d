"""Celery tasks under locks, run by real workers on real brokers."""
