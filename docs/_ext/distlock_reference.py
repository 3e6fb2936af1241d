"""A Sphinx extension: docs/reference, made from the code when the pages are built.

- ``{generated} NAME`` in a page stands for a table or sections of ``distlock_facts``.
- autodoc shows what a user calls: short types, an async twin as a line below the method that it
  does the same as, and links where a docstring names a class or a method.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import distlock_names as names
import django
from django.conf import settings
from django.utils.module_loading import import_string
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

#: Classes of Django, Celery and Python whose members are documented there.
FOREIGN = (
    "AsyncResult",
    "BaseCommand",
    "BaseException",
    "Field",
    "Manager",
    "Model",
    "ModelAdmin",
    "OSError",
    "QuerySet",
    "Task",
    "TestCase",
    "tuple",
)

#: What stands first among the members of a class.
FIRST = ("acquire", "aacquire", "release", "arelease", "attempt")

#: name of a class or function -> where it is documented
_places = {"TaskOptions": "distlock.celery.task_options.TaskOptions"}


def set_up_django() -> None:
    """Set up Django as a project that has distlock, unless it has been set up."""
    if not settings.configured:
        settings.configure(
            SECRET_KEY="docs",
            INSTALLED_APPS=[
                "django.contrib.admin",
                "django.contrib.auth",
                "django.contrib.contenttypes",
                "django.contrib.messages",
                "distlock",
            ],
            DATABASES={
                "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
            },
        )
    django.setup()


def setup(app: Sphinx) -> dict[str, Any]:
    set_up_django()
    app.setup_extension("sphinx.ext.autodoc")
    for path in names.public_names():
        value = import_string(path)
        if not path.startswith("distlock.backends."):  # the page on settings has these
            _places[path.rpartition(".")[2]] = path
        if inspect.isclass(value):
            _order(value)
    app.connect("config-inited", _configure)
    app.connect("source-read", _expand)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _shorten)
    app.connect("autodoc-process-docstring", _link)
    app.connect("doctree-read", _plain_marks)
    app.connect("doctree-read", _list_once, priority=100)  # before Sphinx collects the contents
    app.connect("warn-missing-reference", _is_type)
    return {"parallel_read_safe": True}


def _configure(app: Sphinx, config: Any) -> None:
    config.autodoc_default_options = {"inherited-members": ",".join(FOREIGN)}
    config.autodoc_member_order = "bysource"
    config.autoclass_content = "both"
    config.autodoc_typehints = "signature"
    config.autodoc_typehints_format = "short"
    config.python_use_unqualified_type_names = True
    config.maximum_signature_line_length = 80
    config.add_module_names = False


def _order(owner: type) -> None:
    """Let autodoc show the members of a class in the order of the code, those of its bases last."""
    order = {f"{owner.__qualname__}.{name}": index for index, name in enumerate(FIRST)}
    for base in owner.__mro__:
        if base.__module__.startswith("distlock"):
            analyzer = ModuleAnalyzer.for_module(base.__module__)
            analyzer.analyze()
            tags = sorted(analyzer.tagorder, key=analyzer.tagorder.__getitem__)
            for tag in tags:
                of, _, name = tag.rpartition(".")
                if of == base.__qualname__:
                    order.setdefault(f"{owner.__qualname__}.{name}", len(order) + len(FIRST))
    ModuleAnalyzer.for_module(owner.__module__).tagorder.update(order)


def _expand(app: Sphinx, name: str, source: list[str]) -> None:
    import distlock_facts

    source[0] = distlock_facts.expanded(source[0])


def _plain_marks(app: Sphinx, doctree: nodes.document) -> None:
    """Write the ``*`` of a signature as text: the writer of llms.txt knows no abbreviations."""
    for mark in list(doctree.findall(nodes.abbreviation)):
        mark.replace_self(mark.children)


def _list_once(app: Sphinx, doctree: nodes.document) -> None:
    """Leave a class out of the contents of a page if the section has its name."""
    for signature in doctree.findall(addnodes.desc_signature):
        section = signature.parent.parent
        if isinstance(section, nodes.section) and section[0].astext() == signature["_toc_name"]:
            signature["_toc_name"] = ""


def _is_type(app: Sphinx, domain: Any, node: Any) -> bool | None:
    """Let a type in a signature that has no page here be a name without a link."""
    return True if node.get("refdomain") == "py" and "refexplicit" not in node else None


def _method_of(name: str) -> str:
    """Return the method that a twin for tasks does the same as; "" if it is none."""
    owner, _, twin = name.rpartition(".")
    found = _places.get(owner.rpartition(".")[2]) == owner and import_string(owner)
    return names.method_of(found, twin) if inspect.isclass(found) else ""


def _skip(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what a class has from elsewhere, and what has no words of its own."""
    module = getattr(value, "__module__", None)
    says = inspect.getdoc(value) or ""
    if isinstance(module, str) and not module.startswith("distlock"):
        return True
    if re.fullmatch(r"Alias for field.*|See (BaseCommand|TestCase|Task)\b\S*\.", says):
        return True
    paths = [path for path in names.INTERNAL if path.endswith(f".{name}")]
    if name == "kind" or any(names.is_same(value, path) for path in paths):
        return True
    return None


def _shorten(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Say what a user gets: a method whose body is made of steps returns their result."""
    if returns and (steps := re.fullmatch(r"\S*Generator\[\S*Step, \S*Any, (.*)\]", returns)):
        returns = steps[1]
    constructor = getattr(getattr(value, "__init__", None), "__module__", "distlock")
    if name in names.MADE or (what == "class" and not str(constructor).startswith("distlock")):
        signature = ""
    elif _method_of(name):
        signature = "(...)"
    elif name == "distlock.celery.locked_task":  # its options are those of TaskOptions
        signature = "(*, bind: bool = False, base: type[LockedTask] = LockedTask, **options: Any)"
        returns = ""
    return signature and signature.replace("<factory>", "..."), returns


def _link(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    owner = name if what == "class" else name.rpartition(".")[0]
    if method := _method_of(name):
        lines[:] = [f"As :py:meth:`{method}`, in a coroutine."]
        return
    for index, line in enumerate(lines):
        line = re.sub(r":\w+:`~?([\w.]+)`", _role, line)
        pieces = re.split(r"(``.+?``|:py:obj:`[^`]*`|\"[^\"]*\")", line)
        pieces[::2] = [_linked(piece, owner) for piece in pieces[::2]]
        lines[index] = "".join(pieces)


def _linked(text: str, owner: str) -> str:
    """Return a piece of a docstring with links to the classes and the methods that it names."""
    text = re.sub(r"(?<![\w.])([A-Z]\w*)\.([a-z_]\w+)\(\)", _method, text)
    text = re.sub(r"(?<![\w.~`])([A-Z][a-z]+[A-Z]\w+)(?![\w.`(])", _class, text)
    if owner in _places.values():
        text = re.sub(r"(?<![\w.])([a-z_]+)\(\)", lambda found: _own(owner, found), text)
    return text


def _role(found: re.Match[str]) -> str:
    place = _places.get(found[1].rpartition(".")[2])
    return f":py:obj:`~{place}`" if place else f"``{found[1]}``"


def _class(found: re.Match[str]) -> str:
    place = _places.get(found[1])
    return f":py:obj:`~{place}`" if place else found[0]


def _method(found: re.Match[str]) -> str:
    place = _places.get(found[1])
    if place is None or not hasattr(import_string(place), found[2]):
        return found[0]
    return f":py:meth:`{found[1]}.{found[2]}() <{place}.{found[2]}>`"


def _own(owner: str, found: re.Match[str]) -> str:
    """Return a link to a method, in the first class that has it: ``Queue``, not ``Mailbox``."""
    for base in reversed(import_string(owner).__mro__):
        place = _places.get(base.__name__, "")
        if callable(getattr(base, found[1], None)) and place and import_string(place) is base:
            return f":py:meth:`~{place}.{found[1]}`"
    return found[0]
