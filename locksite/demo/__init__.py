"""``manage.py demo``: real processes work with the lock, and without it for comparison."""
