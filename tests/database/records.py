"""Tests of records in a database: on which ones they run, and what they look at."""

import pytest

from tests.databases import DATABASES, SERVERS

EVERYWHERE = pytest.mark.parametrize("kind", DATABASES)
ON_SERVERS = pytest.mark.parametrize("kind", SERVERS)
ON_POSTGRESQL = pytest.mark.parametrize("kind", ["postgresql"])
ON_MARIADB = pytest.mark.parametrize("kind", ["mariadb"])
ON_SQLITE = pytest.mark.parametrize("kind", ["sqlite"])


def keys(store, directory):
    """Return the keys of all records of a directory."""
    return sorted(store.read(directory).records)
