"""Every piece of Python in the pages for users runs as it stands there."""

import ast
import asyncio
import inspect
import signal
import unittest
from contextlib import suppress
from itertools import count
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import Group
from django.core.management import BaseCommand, call_command
from django.db import connection, models
from django.test import RequestFactory

from distlock import Lock, locks
from distlock.testing import LeakedLock, isolated_locks
from tests.readme.pages import PAGES, TUTORIAL, snippets

SNIPPETS = snippets("python", [page for page in PAGES if page != TUTORIAL])
_numbers = count()


def is_settings(snippet):
    return "DISTLOCK =" in snippet or "INSTALLED_APPS" in snippet


def first_line(snippet):
    return snippet.strip().splitlines()[0]


@pytest.fixture
def reader(backend_settings, settings):
    """What the reader has around the snippets."""
    local = {"BACKEND": "distlock.backends.local.LocalBackend"}
    settings.DISTLOCK = {**backend_settings("sqlite"), "local": local, "new": local}
    made = []
    names = {
        "__name__": f"tests.readme.snippet_{next(_numbers)}",  # tasks of one name must be the same
        "Lock": Lock,
        "models": models,
        "invoice": object(),
        "charge": lambda invoice, fence: None,
        "transfer": lambda fences: None,
        "send": lambda fence: None,
        "show": lambda: None,
        "change": lambda: None,
        "build": lambda: "text",
        "build_report": lambda account_id: None,
        "Seat": SimpleNamespace(
            objects=SimpleNamespace(get=lambda **lookup: SimpleNamespace(save=lambda: None))
        ),
        "made": made,
    }
    before = signal.getsignal(signal.SIGTERM)
    with suppress(LeakedLock), isolated_locks():  # some snippets keep what they have taken
        yield names
    signal.signal(signal.SIGTERM, before)
    Group.objects.all().delete()  # operators of locks
    for model in made:
        with connection.schema_editor() as editor:
            editor.delete_model(model)
        del apps.all_models["tests"][model.__name__.lower()]
    apps.clear_cache()


def run(snippet, names):
    """Run it statement by statement; a model gets its table as soon as it is there.

    A management command is run for 7, and a view is called for 7, as far as they take arguments.
    """
    for statement in ast.parse(snippet).body:
        module = ast.Module([statement], [])
        code = compile(module, "snippet", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            asyncio.run(result)
        model = names.get(getattr(statement, "name", None))
        if inspect.isfunction(model) and "request" in inspect.signature(model).parameters:
            _, *others = inspect.signature(model).parameters
            response = model(RequestFactory().get("/"), *[7 for _ in others])
            assert asyncio.run(response) if inspect.iscoroutine(response) else response
        if inspect.isclass(model) and issubclass(model, BaseCommand):
            call_command(model(), *(["7"] if "add_arguments" in vars(model) else []))
        elif inspect.isclass(model) and issubclass(model, models.Model):
            with connection.schema_editor() as editor:
                editor.create_model(model)
            names["made"].append(model)
        run_test(model)


def run_test(found):
    """Run what a snippet has defined, if that is a test."""
    if inspect.isclass(found) and issubclass(found, unittest.TestCase):
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(found).run(result)
        assert result.testsRun and result.wasSuccessful(), result.failures + result.errors
    elif inspect.isfunction(found) and found.__name__.startswith("test_"):
        found()


@pytest.mark.parametrize(
    "snippet", [part for part in SNIPPETS if not is_settings(part)], ids=first_line
)
def test_code_runs(snippet, reader):
    run(snippet, reader)


@pytest.mark.parametrize(
    "snippet", [part for part in SNIPPETS if is_settings(part)], ids=first_line
)
def test_settings_are_accepted(snippet, settings):
    names = {}
    exec(snippet, names)
    assert names.keys() & {"INSTALLED_APPS", "DISTLOCK"}
    if "DISTLOCK" in names:
        settings.DISTLOCK = names["DISTLOCK"]
        assert [backend.alias for backend in locks.all()] == list(names["DISTLOCK"])


def test_there_are_snippets():
    assert len(SNIPPETS) >= 30
