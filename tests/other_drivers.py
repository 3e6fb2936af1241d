"""Lets Django use PyMySQL and psycopg2, as projects do that have no other driver."""

from __future__ import annotations

import importlib
import os
import sys

#: set in the environment of a test run with these drivers
VARIABLE = "DISTLOCK_TEST_OTHER_DRIVERS"


def use_if_asked() -> None:
    """Do it before Django imports an engine, if the environment says so."""
    if not os.environ.get(VARIABLE):
        return
    import pymysql

    pymysql.install_as_MySQLdb()
    # The servers of the tests go on using psycopg.
    before = sys.modules.get("psycopg")
    sys.modules["psycopg"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("django.db.backends.postgresql.base")
    finally:
        del sys.modules["psycopg"]
        if before is not None:
            sys.modules["psycopg"] = before
