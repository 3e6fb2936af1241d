"""Django's test runner: its databases, in memory or on a server, and a TestCase's transaction."""

import pytest
from django.core.management import call_command
from django.db import connections

from tests.databases import DATABASES


def run_tests():
    """Run the sample cases as ``manage.py test`` does."""
    from django.conf import settings

    settings.DISTLOCK["default"]["OPTIONS"].pop("idle", None)  # as a project has it
    for connection in connections.all():
        connection.settings_dict["TEST"]["DEPENDENCIES"] = []  # the default one may not be needed
    call_command("test", "tests.faults.sample_cases", verbosity=1, interactive=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DATABASES)
def test_a_projects_tests_run_with_locks_in_the_test_database(child, kind, using):
    """In memory for SQLite; created before and dropped after, which an open session would stop."""
    process = child(run_tests, env={"DISTLOCK_SAMPLE_KIND": kind})
    process.finish(110)
    assert "\nOK\n" in process.errors


@pytest.mark.parametrize("kind", ["local"])
def test_a_projects_tests_run_with_local_locks(child, kind, using):
    process = child(run_tests, env={"DISTLOCK_SAMPLE_KIND": "sqlite"})
    process.finish(110)
    assert "\nOK\n" in process.errors
