"""Every piece of Python in the pages for users passes type checkers, as strict as mypy can be."""

import ast
import re
import textwrap

import pytest

from tests.pyright import complaints
from tests.readme.pages import TUTORIAL, snippets
from tests.unit.test_typing import mypy

# Less than what ends the whole run; see faulthandler_timeout.
pytestmark = [pytest.mark.once, pytest.mark.timeout(170)]

#: What the reader has around the snippets.
READER = """
from __future__ import annotations
from django.db import models as models
from distlock import Lock as Lock
from distlock.fencing import FencedModel as FencedModel

INSTALLED_APPS: list[object] = []
invoice = object()

def charge(invoice: object, fence: int) -> None: ...
def transfer(fences: object) -> None: ...
def send(fence: int) -> None: ...
def show(*args: object) -> None: ...
def measure() -> None: ...
def save(row: object) -> None: ...
def apply(value: object) -> None: ...
def tick(fence: int) -> None: ...
def change() -> None: ...
def build() -> str: return "text"
def build_report(account_id: int) -> None: ...

class Seat(models.Model):
    number = models.IntegerField()
    sold = models.BooleanField(default=False)
    objects: models.Manager[Seat] = models.Manager()
    class Meta:
        app_label = "reader"

class Report(FencedModel):
    text = models.TextField()
    class Meta:
        app_label = "reader"
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The snippets as modules, which import what they do not define."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "reader.py").write_text(READER)
    there = defined(ast.parse(READER)) - {"annotations"}
    for file in snippets("python", [TUTORIAL]):  # they import one another
        path = folder / re.match(r"# (\S+)", file)[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
    for number, snippet in enumerate(snippets("python")):
        if re.search(r"^(async with|await) ", snippet, re.MULTILINE):
            snippet = f"async def main() -> None:\n{textwrap.indent(snippet, '    ')}"
        missing = sorted(there - defined(ast.parse(snippet)))
        imports = f"from reader import {', '.join(missing)}\n" if missing else ""
        (folder / f"snippet_{number:02}.py").write_text(imports + snippet)
    return folder


def defined(tree):
    """Return the names that a module defines and does not merely extend."""
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.slow
def test_mypy_is_content(modules, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MYPYPATH", str(modules))
    run = mypy(sorted(modules.glob("*.py")), tmp_path_factory.mktemp("mypy"))
    assert run.stdout == ""
    assert run.returncode == 0


@pytest.mark.slow
def test_pyright_is_content(modules, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(modules))
    assert complaints(modules) == []
