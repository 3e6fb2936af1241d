from __future__ import annotations

from django.db.backends.postgresql import base

from tests.pooling import Pooling


class DatabaseWrapper(Pooling, base.DatabaseWrapper):
    """Has a pool of its own."""
