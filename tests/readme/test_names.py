"""The pages for maintainers name only files, classes, functions and threads that exist."""

from __future__ import annotations

import ast
import builtins
import re
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from tests.readme.pages import PAGES as USER_PAGES

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["docs/architecture.md", "CONTRIBUTING.md"]
FOLDERS = ["distlock", "locksite", "tests", "tools", "docs"]

#: Names of Python, Django and other packages.
FOREIGN = {"transaction.atomic", "makemessages", "itertools.count", "OrderedDict"}
FOREIGN |= {"setdefault", "popitem", "popleft"}

_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PATH = re.compile(r"[\w.-]+(/[\w.-]+)*/?")
_SUFFIXES = (".py", ".md", ".html", ".toml", ".txt", "/")
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(\(.*\))?")
_LINK = re.compile(r"\]\(([^)#\s]*)(#[\w-]+)?\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Code(ast.NodeVisitor):
    """What a package defines: modules, classes with their members, functions, constants."""

    def __init__(self) -> None:
        self.members: dict[str, set[str]] = defaultdict(set)  # of classes and modules
        self.bases: dict[str, set[str]] = defaultdict(set)
        self.names: set[str] = set()
        self.threads: set[str] = set()
        self._scopes: list[str] = []

    def read(self, path: Path) -> None:
        module = path.parent.name if path.stem == "__init__" else path.stem
        self._scopes = [module]
        self.visit(ast.parse(path.read_text()))

    def _define(self, name: str) -> None:
        self.names.add(name)
        self.members[self._scopes[-1]].add(name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._define(node.name)
        for base in node.bases:
            if isinstance(base, (ast.Name, ast.Attribute)):
                self.bases[node.name].add(base.id if isinstance(base, ast.Name) else base.attr)
        self._scopes.append(node.name)
        self.generic_visit(node)
        self._scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._define(node.name)
        self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._define(node.name)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._define(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store):
            self._define(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if called in ("start", "start_for_callbacks", "WorkerThreads", "__init__"):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if isinstance(argument, ast.JoinedStr):
                    argument = argument.values[0]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    self.threads.add(argument.value.rstrip("-"))
        self.generic_visit(node)

    def has_member(self, owner: str, name: str) -> bool:
        """Return whether a class, one of its bases or a module of that name has this member."""
        return name in self.members[owner] or any(
            self.has_member(base, name) for base in self.bases[owner] if base != owner
        )


@pytest.fixture(scope="module")
def code() -> Code:
    code = Code()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            code.read(path)
    return code


@pytest.fixture(scope="module", params=PAGES)
def page(request: pytest.FixtureRequest) -> Path:
    return ROOT / str(request.param)


def problem(text: str, code: Code) -> bool:
    """Return whether a piece of code in a sentence names what does not exist."""
    if _PATH.fullmatch(text) and text.endswith(_SUFFIXES):
        if "/" in text.rstrip("/"):
            return not (ROOT / text).exists() and not (ROOT / "distlock" / text).exists()
        return not any(
            path.name == text.rstrip("/")
            for folder in FOLDERS
            for path in [*(ROOT / folder).rglob(text.rstrip("/")), *ROOT.glob(text.rstrip("/"))]
        )
    if (match := _NAME.fullmatch(text)) is None:
        return False
    name, call = match.groups()
    if name in FOREIGN or name.isupper():
        return False
    first, _, rest = name.partition(".")
    if rest:
        if first not in code.members and first not in code.names:
            return False  # of another package
        *_, owner, member = name.split(".")
        return not code.has_member(owner, member)
    if hasattr(builtins, name) or hasattr(threading, name):
        return False
    is_class = re.fullmatch(r"_?[A-Z][a-z0-9]+\w*", name) is not None
    return (bool(call) or is_class) and name not in code.names


def test_what_a_page_names_exists(page: Path, code: Code) -> None:
    text = page.read_text()
    pieces = _CODE.findall(_FENCE.sub("", text))
    assert len(pieces) > 50
    assert [piece for piece in pieces if problem(piece, code)] == []


def test_what_the_pictures_name_exists(page: Path, code: Code) -> None:
    pictures = "\n".join(_MERMAID.findall(page.read_text()))
    calls = re.findall(r"\b_?[A-Za-z]\w*(?:\.\w+)?\(", pictures)
    names = [*re.findall(r"\b[A-Z]\w+\.\w+", pictures), *(f"{call})" for call in calls)]
    assert [name for name in names if problem(name, code)] == []


def test_the_pictures_are_complete() -> None:
    """No parser of Mermaid is needed to find what is misspelt or not closed."""
    pictures = _MERMAID.findall((ROOT / "docs/architecture.md").read_text())
    assert len(pictures) > 5
    for picture in pictures:
        kind, *lines = [line.strip() for line in picture.splitlines()]
        opened = sum(line.split()[0] in ("loop", "alt", "opt", "subgraph") for line in lines)
        assert opened == lines.count("end"), picture
        if kind == "sequenceDiagram":
            participants = {line.split()[1] for line in lines if line.startswith("participant ")}
            ends = [re.match(r"(\w+)--?>>(\w+): ", line) for line in lines]
            used = {end for found in ends if found for end in found.groups()}
            assert used == participants, picture


@pytest.mark.parametrize(
    "page",
    [*USER_PAGES, *(ROOT / page for page in [*PAGES, "tests/README.md"])],
    ids=lambda page: page.name,
)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target, anchor in _LINK.findall(text):
        if target.startswith("https://"):
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor[1:] in anchors, anchor


def test_two_pages_have_the_same_table() -> None:
    """A reader of the site has no README."""
    tables = [
        re.search(r"^\| \| distlock \|(?:.*\|\n)+", (ROOT / page).read_text(), re.MULTILINE)
        for page in ["README.md", "docs/comparison.md"]
    ]
    readme, site = (table and table[0] for table in tables)
    assert readme
    assert readme == site


def test_all_threads_are_described(code: Code) -> None:
    """Those that the page has and the code has not are found by the table's names."""
    text = (ROOT / "docs/architecture.md").read_text()
    table = re.findall(r"^\| `(distlock-[\w-]+?)-?…?` \|", text, re.MULTILINE)
    threads = {name for name in code.threads if name.startswith("distlock-")}
    assert set(table) == threads


@pytest.mark.parametrize(
    "package",
    [
        "admin",
        "backends",
        "backends/database",
        "backends/zookeeper",
        "concurrency",
        "locking",
        "recipes",
        "records",
        "runtime",
        "types",
    ],
)
def test_a_package_lists_its_modules(package: str) -> None:
    folder = ROOT / "distlock" / package
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    listed = re.findall(r"^(\w+) +\S", docstring.split("\n\n", 1)[1], re.MULTILINE)
    modules = {path.stem for path in folder.glob("*.py")}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert modules - {"__init__"} | packages <= set(listed)
    table = re.findall(r"^(\w+) {2,}\S", docstring, re.MULTILINE)
    assert set(table) <= modules | packages


def test_a_name_that_does_not_exist_is_noticed(code: Code) -> None:
    """The control: these must fail."""
    for text in ["distlock/no_such.py", "Lock.no_such()", "NoSuchClass", "no_such()", "no_such.py"]:
        assert problem(text, code), text
    for text in [
        "distlock/locking/lock.py",
        "Lock.acquire()",
        "BaseBackend",
        "eventually()",
        "lock.py",
    ]:
        assert not problem(text, code), text
