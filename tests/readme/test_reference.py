"""docs/reference has every public name, with a docstring that says all, and every check, setting …"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import textwrap
from functools import cache

import unittest
from enum import Enum
import pytest
from django.apps import apps
from django.contrib import admin
from django.core.management.base import BaseCommand
from django.db import models
from distlock.backends.base import BaseBackend
from distlock.celery.task_options import TaskOptions
from django.contrib.auth.models import Permission
from django.dispatch import Signal
from django.utils.module_loading import import_string

from distlock import exceptions, signals
from distlock.types.lease import LOG_FIELDS
from tests.readme.pages import PAGES, ROOT, text

sys.path.insert(0, str(ROOT / "docs" / "_ext"))
import distlock_facts as facts  # noqa: E402
import distlock_names as public  # noqa: E402

pytestmark = pytest.mark.once

NAMES = sorted(set(public.public_names()))
REFERENCE = {path.stem: path for path in (ROOT / "docs" / "reference").glob("*.md")}

_SEE = re.compile(r"(?<![\w.])(?:([A-Z]\w+)\.)?(\w+)\(\)"
    r"|\b(?:see|as|See|As|of|those of)(?: of| for)? (?:``|:class:`)?[\w~.]*?([A-Z]\w+)\b")
_TIMES = {
    "at_least", "at_most", "busy_delay", "busy_delay_max", "delay", "lease", "max_age", "period",
    "queueing_ttl", "retry_after", "seconds", "timeout", "unavailable_timeout",
}  # fmt: skip


@cache
def page(name):
    """The text of a page of the reference, with what is made from the code."""
    return facts.expanded(REFERENCE[name].read_text())


# Names


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_a_page(name):
    listed = [
        line for path in REFERENCE.values() for line in path.read_text().splitlines() if name in line
    ]
    assert any(re.search(rf"(:: |\"){re.escape(name)}(\"|$)", line) for line in listed)


def test_what_the_pages_import_is_public():
    places = {import_string(name).__module__ + f".{name.rpartition('.')[2]}" for name in NAMES
              if hasattr(import_string(name), "__module__")}
    imported = re.findall(r"^ *from (distlock[\w.]*) import ([\w, ]+)", text(), re.MULTILINE)
    assert len(imported) > 20
    names = {f"{module}.{name.strip()}" for module, names in imported for name in names.split(",")}
    def is_public(name):
        value = import_string(name)
        where = f"{getattr(value, '__module__', '')}.{name.rpartition('.')[2]}"
        return name in NAMES or where in places or inspect.ismodule(value)
    assert [name for name in sorted(names) if not is_public(name)] == []


# Docstrings


def callables():
    """Yield each public callable: its dotted path, itself, the class that it is a member of."""
    for name in NAMES:
        value = import_string(name)
        if inspect.isclass(value):
            yield name, value, value
            if not name.startswith(public.CLOSED) and not issubclass(value, BaseException):
                for member, found in public.members_of(value):
                    is_foreign = docstring(found).startswith(("See AsyncResult", "See Task.", "See TestCase"))
                    if (callable(found) or isinstance(found, property)) and not is_foreign:
                        if not public.method_of(value, member):
                            yield f"{name}.{member}", found, value
        elif inspect.isroutine(value) or name == "distlock.tasks.sweep":
            yield name, value, None


def docstring(value):
    """Return what says everything about a callable; of a class its constructor does, too."""
    says = (inspect.getdoc(value) or "") if not isinstance(value, property) else (inspect.getdoc(value.fget) or "")
    if inspect.isclass(value) and "__init__" in vars(value):
        says += "\n\n" + (inspect.getdoc(value.__init__) or "")
    return says


def full(value, owner, seen=()):
    """Return the docstring with those that it refers to: "see put()", "as of Lock.acquire()"."""
    says = own = docstring(value)
    for of, method, of_class in _SEE.findall(own):
        found = PLACES.get(of or of_class) if of or of_class else owner
        found = getattr(found, method, PLACES.get(method)) if method else found
        if found is not None and found is not value and found not in seen:
            says += "\n" + full(found, PLACES.get(of, owner), (*seen, value))
    return says




def problems(name, value, owner):
    """Yield what the docstring of a callable lacks."""
    own, says = docstring(value), full(value, owner)
    first = own.partition("\n\n")[0].strip()
    if not first.endswith((".", ":")):
        yield "no first sentence"
    if isinstance(value, property):
        return
    if not issubclass(value, BaseException) if inspect.isclass(value) else True:
        code = " ".join(re.findall(r"``(.+?)``", says, re.DOTALL))
        for parameter in parameters(value):
            if not re.search(rf"\b{parameter}\b", code):
                yield f"the parameter {parameter} is not named"
            elif parameter in _TIMES and "second" not in says:
                yield f"the unit of {parameter} is not said"
    if returns(value) and not re.search(r"(?i)\b(return|yield|true|false)", says):
        yield "what is returned is not said"
    for error in sorted(raises(value)):
        if not re.search(rf"\b{error}\b", says):
            yield f"{error} is not named"


def parameters(value):
    """Return the names of what a caller gives."""
    if inspect.isclass(value) and issubclass(value, (models.Model, admin.ModelAdmin, unittest.TestCase, models.Field, models.QuerySet, models.Manager, BaseCommand, BaseBackend, Enum, BaseException)):
        return []
    if value.__module__.startswith("distlock.celery") and inspect.isclass(value):
        return []
    try:
        signature = inspect.signature(value)
    except ValueError:
        return []
    fixed = [each for each in signature.parameters.values() if each.name not in ("self", "args", "kwargs", "request", "get_response")]
    return [each.name for each in fixed]


def body(value):
    """Return the function behind a callable; None for a class without a constructor of its own."""
    if inspect.isclass(value):
        value = vars(value).get("__init__")
    function = inspect.unwrap(getattr(value, "__func__", value)) if value else None
    return function if inspect.isfunction(function) else None


def returns(value):
    function = body(value)
    if function is None or function.__name__ == "__init__":
        return False
    said = str(function.__annotations__.get("return"))
    return said not in ("None", "Steps[None]") and function.__code__.co_name and not is_block(value)


def is_block(value):
    """Return whether it is used as ``with``, which gives what its docstring describes."""
    return inspect.isgeneratorfunction(body(value)) and body(value) is not value and "Steps" not in str(body(value).__annotations__["return"])


def raises(value):
    """Return the errors that the code of a callable raises; one that asks a backend has one more."""
    function = body(value)
    if function is None or not function.__code__.co_filename.startswith(str(ROOT)):
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = raised.id if isinstance(raised, ast.Name) else ""
            error = getattr(exceptions, name, None) or getattr(builtins, name, None)
            if inspect.isclass(error) and error is not NotImplementedError:
                found.add(name)
    if "Steps" in str(function.__annotations__.get("return")):
        found.add("LockUnavailable")
    return found


PLACES = {name.rpartition(".")[2]: import_string(name) for name in NAMES}
PLACES["TaskOptions"] = TaskOptions
CALLABLES = {name: (value, owner) for name, value, owner in callables()}
