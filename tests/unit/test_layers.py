"""Imports go only down the layers of the package, and never up or to the site."""

import ast
import functools
from pathlib import Path

import pytest

import distlock

pytestmark = pytest.mark.once

PACKAGE = Path(distlock.__file__).parent

#: from the bottom to the top; a module belongs to the longest name
LAYERS = [
    ["exceptions", "concurrency", "typed"],
    ["signals"],
    ["types", "registry", "models", "migrations", "apps", "activity"],
    ["backends.settings", "backends.open_transactions"],
    ["backends.background", "backends.store"],
    ["backends.base"],
    ["backends.reading"],
    ["backends.local_store"],
    ["backends.zookeeper.options", "backends.zookeeper.requests"],
    ["backends.zookeeper.connection"],
    ["backends.zookeeper.client"],
    ["backends.zookeeper.tree"],
    ["backends.zookeeper.records", "backends.zookeeper.contender"],
    ["backends.zookeeper.changes"],
    ["backends.zookeeper.store"],
    ["backends.zookeeper.lock"],
    ["backends.etcd.options"],
    ["backends.etcd.connections"],
    ["backends.etcd.messages"],
    ["backends.etcd.watches"],
    ["backends.etcd.client"],
    ["backends.etcd.lock_keys"],
    ["backends.etcd.leases"],
    ["backends.etcd.contender"],
    ["backends.etcd.store"],
    ["backends.etcd.lock"],
    ["backends.database.errors", "backends.database.statements"],
    ["backends.database.sql"],
    ["backends.database.advisory_locks", "backends.database.connection"],
    ["backends.database.drivers"],
    ["backends.database.record_sql", "backends.database.sqlite_session"],
    ["backends.database.mariadb", "backends.database.postgresql", "backends.database.sqlite"],
    ["backends.database.connect", "backends.database.record_reads"],
    ["backends.database.pool"],
    ["backends.database.runner", "backends.database.wait_session"],
    ["backends.database.waiter"],
    ["backends.database.stall_monitor"],
    ["backends.database.wait_manager"],
    ["backends.database.queries", "backends.database.transactions"],
    ["backends.database.record_listeners"],
    ["backends.database.record_watcher"],
    ["backends.database.checks"],
    ["backends.database.store"],
    ["backends.database.lock"],
    ["records.process_session", "records.seats"],
    ["records.seat_requests"],
    ["records.recipe_records"],
    ["records.shared_backend"],
    ["backends"],
    ["audit", "conf"],
    ["runtime.hold", "runtime.name_template"],
    ["runtime.events", "runtime.local_queue"],
    ["runtime.acquiring", "runtime.renewal"],
    ["runtime.holds"],
    ["runtime.manager"],
    ["runtime"],
    ["locking.options"],
    ["locking.blocks", "locking.until_commit"],
    ["locking.base_lock"],
    ["locking.lock"],
    ["locking.parts", "locking.shared"],
    ["locking"],
    ["recipes.cells"],
    ["recipes.recipe", "recipes.description"],
    ["recipes.membership", "recipes.following", "recipes.report"],
    ["recipes.candidates"],
    ["recipes.candidacy"],
    ["recipes"],
    [""],
    ["process_members", "fan_out"],
    ["views", "middleware", "fencing", "checks", "testing", "commands", "management", "supervisor"],
    ["celery", "tasks"],
    ["admin", "templatetags"],
]
WORDS = {
    "exceptions",
    "typed",  # a stub, for type checkers only
    "signals",
    "types",
    "models",
    "registry",
    "activity",
    "concurrency",
}


@functools.cache
def modules():
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def dotted(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def rank(module):
    best = None
    for number, names in enumerate(LAYERS):
        for name in names:
            inside = module == name or (name and module.startswith(name + "."))
            if inside and (best is None or len(name) > best[0]):
                best = (len(name), number)
    assert best is not None, f"tests/unit/test_layers.py does not know where {module!r} belongs"
    return best[1]


def imported(path):
    """Yield every module of the package that ``path`` imports when it is loaded."""
    for node in imports_at_load(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.level == 0 and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if is_module(inner) else node.module


def imports_at_load(tree):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from imports_at_load(node)


@functools.cache
def is_module(name):
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_imports_go_down_only():
    wrong = [
        f"{dotted(path) or 'distlock'} imports {name}"
        for path in modules()
        for name in imported(path)
        if name == "distlock" or name.startswith("distlock.")
        if rank(name.removeprefix("distlock").lstrip(".")) > rank(dotted(path))
    ]
    assert not wrong


def test_no_cycle_is_hidden_from_the_interpreter():
    """Nothing of the package is imported for type checkers only, but stubs.

    Only `distlock` itself, which is above them all, imports its names when they are asked for.
    """
    wrong = [
        f"{dotted(path)} imports {node.module}"
        for path in modules()
        if dotted(path)
        for block in ast.walk(parsed(path))
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom) and is_module(node.module)
        if node.module.startswith("distlock")
    ]
    assert not wrong


def test_nothing_imports_the_site_or_the_tests():
    wrong = [
        f"{dotted(path)} imports {name}"
        for path in modules()
        for name in imported(path)
        if name.partition(".")[0] in {"locksite", "tests"}
    ]
    assert not wrong


def test_no_import_is_relative():
    wrong = [
        dotted(path)
        for path in modules()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not wrong


def test_a_module_opens_with_what_it_is_for():
    wrong = [
        dotted(path)
        for path in modules()
        if parsed(path).body and not ast.get_docstring(parsed(path))
    ]
    assert not wrong


def test_a_module_stays_short():
    """At most 280 lines that are neither blank nor comment nor docstring."""
    long = {dotted(path): count for path in modules() if (count := code_lines(path)) > 280}
    assert not long


def test_an_interrupt_ends_in_few_places_and_each_says_why():
    """See "Handlers" in docs/architecture.md."""
    found = [
        (dotted(path), path.read_text().splitlines()[node.lineno - 1])
        for path in modules()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ExceptHandler) and catches_everything(node)
    ]
    assert not [place for place in found if "#" not in place[1]]
    assert len(found) <= 21


def catches_everything(handler):
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind) == "BaseException" for kind in kinds)


def code_lines(path):
    text = path.read_text()
    said = {
        line
        for docstring in docstrings(parsed(path))
        for line in range(docstring.lineno, docstring.end_lineno + 1)
    }
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in said
        for number, line in enumerate(text.splitlines(), 1)
    )


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for first in node.body[:1]:
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    yield first


def test_the_words_import_nothing_above_them():
    for path in modules():
        if dotted(path).partition(".")[0] in WORDS:
            for name in imported(path):
                inner = name.removeprefix("distlock.").partition(".")[0]
                assert not name.startswith("distlock.") or inner in WORDS
