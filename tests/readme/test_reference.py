"""docs/reference has every public name, setting, check, command, exit code, signal and permission.

The docstring of a public callable says in one first sentence what it is for, names each parameter
as ``code`` (a time with its unit), and says what is returned and which errors are raised. It may
leave that to another one, to which it refers: "see put()", "as of Lock.acquire()", "as of a Lock".
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import textwrap
from dataclasses import is_dataclass
from functools import cache

import pytest
from django.contrib.auth.models import Permission
from django.core.management.base import BaseCommand
from django.utils.module_loading import import_string

from distlock import conf, exceptions
from distlock.backends.settings import KEYS
from distlock.celery.task_options import TaskOptions
from distlock.commands import exit_codes
from distlock.types.lease import LOG_FIELDS
from tests.readme.pages import ROOT, text

sys.path.insert(0, str(ROOT / "docs" / "_ext"))
import distlock_facts as facts  # noqa: E402
import distlock_names as public  # noqa: E402

pytestmark = pytest.mark.once

REFERENCE = ROOT / "docs" / "reference"
NAMES = sorted(set(public.public_names()))
OBJECTS = {name: import_string(name) for name in NAMES}
#: What a docstring may refer to.
REFERRED = {name.rpartition(".")[2]: value for name, value in OBJECTS.items()}
REFERRED["TaskOptions"] = TaskOptions

_SEE = re.compile(
    r"(?<![\w.])(?:([A-Z]\w+)\.)?(\w+)\(\)"
    r"|\b(?:[Ss]ee|[Aa]s(?: of| for)?|those of)(?: an?)? (?:``|:class:`~?[\w.]*?)?([A-Z]\w+)\b"
    r"(?!\.\w|\()"
)
#: Parameters that are times.
_TIMES = re.compile(
    r"at_(least|most)|.*delay(_max)?|lease|max_age|period|.*_ttl|retry_after|seconds|.*timeout"
)
#: Parameters with which Django calls something, and not its user.
_DJANGO = ("get_response", "request")
#: Beginnings of docstrings of methods that another package documents.
_FOREIGN = ("See AsyncResult.", "See Task.", "See TestCase.")


CODE = "\n".join(path.read_text() for path in facts.CODE.rglob("*.py"))


@cache
def page(name):
    """Return the text of a page of the reference, with what is made from the code."""
    return facts.expanded((REFERENCE / f"{name}.md").read_text())


# Names


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_a_page(name):
    listed = "\n".join(path.read_text() for path in REFERENCE.glob("*.md"))
    directive = rf"^\.\. auto\w+:: {re.escape(name)}$"
    assert re.search(directive, listed, re.MULTILINE) or f'"{name}"' in listed


def test_what_pages_import_is_public():
    """A name may be imported from the module that defines it, too."""
    imported = re.findall(r"^ *from (distlock[\w.]*) import ([\w, ]+)", text(), re.MULTILINE)
    names = {f"{module}.{name.strip()}" for module, names in imported for name in names.split(",")}
    assert len(names) > 20
    found = {name: import_string(name) for name in names}
    assert [name for name, value in found.items() if value not in OBJECTS.values()] == []


def test_every_page_is_listed():
    listed = re.findall(r"\]\((\w+)\.md\)", page("index"))
    assert {*listed, "index"} == {path.stem for path in REFERENCE.glob("*.md")}


# Docstrings


def callables():
    """Yield each public callable: its dotted path, itself, the class that it is a member of."""
    for name, value in OBJECTS.items():
        if callable(value):
            yield name, value, value
        is_open = inspect.isclass(value) and not name.startswith(public.CLOSED)
        if is_open and not issubclass(value, BaseException):
            for member, found in public.members_of(value):
                is_twin = public.method_of(value, member)
                is_ours = callable(found) or isinstance(found, property)
                if is_ours and not is_twin and not docstring(found).startswith(_FOREIGN):
                    yield f"{name}.{member}", found, value


def docstring(value):
    """Return the docstring of a callable; of a class that of its constructor, too."""
    says = inspect.getdoc(value.fget if isinstance(value, property) else value) or ""
    if inspect.isclass(value) and inspect.isfunction(value.__init__) and not is_dataclass(value):
        says += f"\n\n{inspect.cleandoc(value.__init__.__doc__ or '')}"
    return says


def full_docstring(value, owner, seen=()):
    """Return the docstring with those to which it refers."""
    says = docstring(value)
    for of, method, of_class in _SEE.findall(says):
        referred = REFERRED.get(of or of_class) if of or of_class else owner
        if method:
            referred = getattr(referred, method, REFERRED.get(method))
        if referred is not None and referred is not value and referred not in seen:
            says += "\n" + full_docstring(referred, REFERRED.get(of, owner), (*seen, value))
    return says


def problems(value, owner):
    """Yield what the docstring of a callable lacks."""
    says = full_docstring(value, owner)
    if not docstring(value).partition("\n\n")[0].endswith((".", ":")):
        yield "a first sentence"
    code = " ".join(re.findall(r"``(.+?)``", says, re.DOTALL))
    for parameter in parameters(value):
        if not re.search(rf"\b{parameter}\b", code):
            yield f"the parameter {parameter}"
        elif _TIMES.fullmatch(parameter) and "second" not in says:
            yield f"the unit of {parameter}"
    if returns(value) and not re.search(r"(?i)\b(return|yield|true|false)", says):
        yield "what is returned"
    yield from (f"{error}" for error in sorted(raises(value)) if error not in says)


def parameters(value):
    """Return the names of the arguments that a user gives."""
    if isinstance(value, property) or value in map(import_string, public.MADE):
        return []
    if inspect.isclass(value) and not is_dataclass(value):
        constructor = getattr(value.__init__, "__module__", "")
        if not constructor.startswith("distlock") or constructor.startswith(public.CLOSED):
            return []  # Django has it, or calls it
        if issubclass(value, BaseException) or REFERRED.get(value.__name__) is not value:
            return []
    signature = inspect.signature(value)
    # A report is of the name and the alias that somebody asked for.
    obvious = ("name", "using") if is_dataclass(value) else ()
    return [
        each.name
        for each in signature.parameters.values()
        if each.name not in ("self", "args", "kwargs", *_DJANGO, *obvious)
        and each.kind is not each.POSITIONAL_ONLY
    ]


def body(value):
    """Return the function that a user calls; None for what is none, or has no code of its own."""
    value = vars(value).get("__init__") if inspect.isclass(value) else value
    function = inspect.unwrap(getattr(value, "__func__", value)) if value else None
    is_ours = inspect.isfunction(function) and function.__code__.co_filename.startswith(str(ROOT))
    return function if is_ours else None


def result(value):
    """Return the annotation of what a callable returns, as it is written."""
    function = body(value)
    return str(function.__annotations__.get("return")) if function else "None"


def returns(value):
    """Return whether the docstring has to say what is returned: not for a ``with`` block."""
    function, annotation = body(value), result(value)
    is_block = function is not value and annotation.startswith("Iterator[")
    return annotation not in ("None", "Steps[None]") and not is_block


def raises(value):
    """Return the errors that the code raises; LockUnavailable if it asks a backend."""
    function = body(value)
    if function is None:
        return set()
    found = {"LockUnavailable"} if result(value).startswith("Steps[") else set()
    if "outage is logged" in docstring(value):
        found.clear()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = getattr(node.exc.func, "id", "")
            if hasattr(exceptions, name) or hasattr(builtins, name):
                found.add(name)
    return found - {"NotImplementedError"}


CALLABLES = {name: (value, owner) for name, value, owner in callables()}


def test_there_are_callables():
    assert len(CALLABLES) > 250


@pytest.mark.parametrize("name", CALLABLES)
def test_a_docstring_says_all(name):
    assert list(problems(*CALLABLES[name])) == []


def test_what_a_docstring_lacks_is_noticed():
    """The control: all of this must be found."""

    def bad(self, name, timeout):
        """Do it

        ``timeout`` limits it.
        """
        if name:
            raise ValueError("no")
        return 1

    bad.__annotations__["return"] = "Steps[int]"
    assert list(problems(bad, None)) == [
        "a first sentence",
        "the parameter name",
        "the unit of timeout",
        "what is returned",
        "LockUnavailable",
        "ValueError",
    ]


# Settings, checks, commands, permissions


def rows(name, heading=""):
    """Return the first cells of the tables of a page, below a heading; what is code in them."""
    _, _, below = page(name).partition(f"\n## {heading}")
    below = below.partition("\n## ")[0] if heading else page(name)
    return re.findall(r"^\| `(.+?)` \|", below, re.MULTILINE)


def test_all_keys_of_an_alias_are_listed():
    assert sorted(rows("settings", "DISTLOCK\n")) == sorted(KEYS)


@pytest.mark.parametrize(
    ("heading", "backend"),
    [
        ("OPTIONS of a database", "distlock.backends.database.DatabaseBackend"),
        ("OPTIONS of ZooKeeper", "distlock.backends.zookeeper.ZooKeeperBackend"),
        ("OPTIONS of etcd", "distlock.backends.etcd.EtcdBackend"),
    ],
)
def test_all_options_are_listed(heading, backend):
    assert sorted(rows("settings", heading)) == sorted(import_string(backend).default_options)


def test_all_settings_have_a_section():
    assert not import_string("distlock.backends.local.LocalBackend").default_options
    settings = {value for name, value in vars(conf).items() if name.endswith("_SETTING")}
    settings |= set(re.findall(r'settings, "(DISTLOCK\w*)"', CODE))
    assert len(settings) >= 3
    assert settings == set(re.findall(r"^## (DISTLOCK\w*)$", page("settings"), re.MULTILINE))


def test_all_checks_have_a_section():
    ids = set(re.findall(r'"(distlock\.[CEIW]\d{3})"', CODE))
    assert len(ids) > 20
    assert ids == set(re.findall(r"^## (distlock\.\w+)$", page("checks"), re.MULTILINE))
    levels = {check.id: check.level for check in facts.all_checks()}
    assert all(level[0] == id.rpartition(".")[2][0] for id, level in levels.items())
    assert [check.id for check in facts.all_checks() if not check.meaning] == []


def test_all_verbs_and_their_options_are_listed():
    verbs = dict(facts.all_verbs())
    assert len(verbs) > 30
    sections = re.split(r"^### (.*)$", page("commands"), flags=re.MULTILINE)[1:]
    listed = dict(zip(sections[::2], sections[1::2], strict=True))
    assert listed.keys() == verbs.keys()
    plain = {
        name
        for action in BaseCommand().create_parser("manage.py", "plain")._actions
        for name in action.option_strings
    }
    for words, parser in verbs.items():
        options = {name for action in parser._actions for name in action.option_strings}
        lacking = [name for name in options - plain if f"{name}" not in listed[words]]
        assert lacking == [], words


def test_all_exit_codes_are_listed():
    codes = {str(code) for code in vars(exit_codes).values() if type(code) is int}
    assert codes <= set(rows("commands", "Exit codes"))
    assert codes == {str(code) for code in exit_codes.MEANINGS}


@pytest.mark.django_db
def test_all_permissions_are_listed():
    made = Permission.objects.filter(content_type__app_label="distlock")
    names = {f"distlock.{permission.codename}" for permission in made}
    assert len(names) > 20
    assert set(rows("permissions")) == names


def test_all_attributes_of_log_records_are_listed():
    assert rows("signals", "Attributes of log records") == [*LOG_FIELDS]


def test_all_loggers_are_listed():
    assert set(rows("signals", "Loggers")) == set(re.findall(r'getLogger\("(.+?)"\)', CODE))
