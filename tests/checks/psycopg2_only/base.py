"""Django's engine for PostgreSQL, as it is where psycopg2 is installed and psycopg is not."""

from types import ModuleType

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    Database = ModuleType("psycopg2")
