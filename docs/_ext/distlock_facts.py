"""Tables of docs/reference that are made from the code: settings, checks, commands and more.

``PARTS`` has them by name, as Markdown. Django has to be set up; Sphinx is not needed.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from itertools import product
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand
from django.utils.module_loading import import_string

import distlock
from distlock.backends.settings import DEFAULT_LEASE, BackendSettings
from distlock.commands import LockedCommand
from distlock.commands.exit_codes import MEANINGS
from distlock.management.commands.locks import Command as Locks

CODE = Path(distlock.__file__).parent
DOCS = Path(__file__).parents[1]

_ITEM = re.compile(r"^- (``.+?): (.*?)(?=^- ``|^\S|\Z)", re.MULTILINE | re.DOTALL)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _code(value: object) -> str:
    return f"`{value!r}`".replace("'", '"')


def _text(said: str) -> str:
    """Return a piece of a docstring, which is reStructuredText, as Markdown in one line."""
    said = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(said.split()))
    return said.replace("``", "`")


#: What is code in a sentence for people: an option of a command, a setting.
_CODE = re.compile(r'(?<![\w`-])(--[a-z][\w-]*|[A-Z]+(?:_[A-Z]+)+|OPTIONS\["\w+"\])(?![\w`])')


def _as_code(said: str) -> str:
    """Return a sentence of the code as Markdown: what is code in it is marked."""
    pieces = said.split("`")  # every second one is marked already
    pieces[::2] = [re.sub(r"([<>*])", r"\\\1", _CODE.sub(r"`\1`", piece)) for piece in pieces[::2]]
    return "`".join(pieces)


# Settings


def options(docstring: str, defaults: Mapping[str, Any]) -> str:
    """Return a table of what the list in a docstring names, with the defaults."""
    rows = []
    for names, said in _ITEM.findall(cleandoc(docstring)):
        for name in re.findall(r"``(\w+)``", names):
            default = _code(defaults[name]) if name in defaults else ""
            rows.append((f"`{name}`", default, _text(said)))
    return table(("name", "default", "meaning"), rows)


def entry_keys() -> str:
    """Return the keys of one entry of ``DISTLOCK``."""
    defaults = {"LEASE": int(DEFAULT_LEASE), "RELEASE": None, "LOCATION": "", "OPTIONS": {}}
    backend = "- ``BACKEND``: the dotted path of the backend's class."
    return options(f"{backend}\n{cleandoc(BackendSettings.__doc__ or '')}", defaults)


def database_options() -> str:
    backend = import_string("distlock.backends.database.DatabaseBackend")
    return options(backend.__doc__, backend.default_options)


def zookeeper_options() -> str:
    return _server_options("distlock.backends.zookeeper.options", "ZooKeeperOptions")


def etcd_options() -> str:
    return _server_options("distlock.backends.etcd.options", "EtcdOptions")


def _server_options(path: str, name: str) -> str:
    module = import_module(path)
    return options(getattr(module, name).__doc__, module.DEFAULTS)


# Checks


@dataclass
class Check:
    """A system check, with its texts in the code; "…" stands for what only a run knows."""

    id: str
    level: str
    messages: list[str]
    hints: list[str]

    @property
    def meaning(self) -> str:
        """What the table in docs/settings.md says of it; "" if it is not there."""
        page = (DOCS / "settings.md").read_text()
        found = re.search(rf"^\| `{re.escape(self.id)}` \| (.*) \|$", page, re.MULTILINE)
        return found[1] if found else ""


class _Texts:
    """The texts that expressions of a function may be."""

    def __init__(self, module: str, function: ast.FunctionDef) -> None:
        self._module = import_module(module)
        self._function = function

    def of(self, node: ast.expr | None) -> list[str]:
        texts = self._texts(node, True)
        return [text for text in texts if text.strip("… ")]

    def _texts(self, node: ast.expr | None, deep: bool) -> list[str]:
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.FormattedValue(value=value, conversion=-1):
                return self._texts(value, deep)
            case ast.JoinedStr(values=parts):
                each = [self._texts(part, deep) for part in parts]
                return ["".join(chosen) for chosen in product(*each)]
            case ast.BinOp(left=left, op=ast.Mod()):
                return [text.replace("%s", "…") for text in self._texts(left, deep)]
            case ast.Name(id=name):
                values = [*self._assigned(name)] if deep else []
                found = [text for value in values for text in self._texts(value, False)]
                constant = getattr(self._module, name, None)
                constants = [constant] if isinstance(constant, str) else []
                return [text for text in found if text.strip("… ")] or constants or ["…"]
        return ["…"]

    def _assigned(self, name: str) -> Iterator[ast.expr]:
        for node in ast.walk(self._function):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Name) and target.id == name:
                    yield node.value
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=True)
                    yield from (v for t, v in pairs if isinstance(t, ast.Name) and t.id == name)


def all_checks() -> list[Check]:
    """Return the checks whose ids are in the code, in the order of these."""
    found = {
        id: Check(id, "Error", [f"{setting} …"], [hint])
        for _, setting, id, hint in import_string("distlock.checks._OTHER_SETTINGS")
    }
    for path in CODE.rglob("*.py"):
        if '"distlock.' not in (text := path.read_text()):
            continue
        module = ".".join(["distlock", *path.relative_to(CODE).with_suffix("").parts])
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef):
                found |= {check.id: check for check in _checks_of(module, function)}
    return [found[id] for id in sorted(found)]


def _checks_of(module: str, function: ast.FunctionDef) -> Iterator[Check]:
    for call in ast.walk(function):
        given = {each.arg: each.value for each in getattr(call, "keywords", ())}
        match call, given.get("id"):
            case ast.Call(ast.Name(level), [message, *_]), ast.Constant(value=str(id)):
                texts = _Texts(module, function)
                yield Check(id, level, texts.of(message), texts.of(given.get("hint")))


def checks() -> str:
    """Return a section for each check."""
    parts = []
    for check in all_checks():
        meaning = check.meaning[:1].upper() + check.meaning[1:]
        part = f"## {check.id}\n\n**{check.level}.** {meaning}.\n\n"
        if check.messages:
            part += f"Message: {_listed(check.messages)}\n\n"
        parts.append(f"{part}What to do: {_listed(check.hints or ['What the message says.'])}\n")
    return "\n".join(parts)


def _listed(texts: list[str]) -> str:
    first, *others = [_as_code(text).replace("….", "…") for text in texts]
    return "\n".join([f"\n\n- {first}", *(f"- {text}" for text in others)]) if others else first


# Commands


def exit_codes() -> str:
    """Return what the exit codes of all commands mean."""
    rows = [(f"`{code}`", _as_code(meaning)) for code, meaning in MEANINGS.items()]
    signal = ("`128+N`", "signal N ended the program, or the wait for the lock")
    return table(("exit code", "meaning"), [*rows, signal])


def all_verbs() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield what can stand behind ``manage.py``, and its parser: ``locks queue retry``."""
    yield from _verbs("locks", Locks().create_parser("manage.py", "locks"))


def _verbs(
    words: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not below:
        yield words, parser
    for action in below:
        for name, inner in action.choices.items():
            yield from _verbs(f"{words} {name}", inner)


def commands() -> str:
    """Return a section for each verb of ``manage.py locks``."""
    parts = []
    for words, parser in all_verbs():
        own = [each for each in parser._actions if each.help != argparse.SUPPRESS]
        own = [each for each in own if each.dest != "help"]
        own.sort(key=lambda each: str(each.metavar).startswith("--"))  # a program comes last
        usage = _wrapped(["manage.py", *words.split(), *map(_usage, own)])
        said = _as_code(parser.description or "")
        end = _as_code(parser.epilog or "")
        parts.append(
            f"### {words}\n\n{said}\n\n```text\n{usage}\n```\n\n{_arguments(own)}\n\n{end}\n"
        )
    return "\n".join(parts)


def command_options() -> str:
    """Return the options that LockedCommand adds to a command."""
    plain = BaseCommand().create_parser("manage.py", "yours")
    known = {name for each in plain._actions for name in each.option_strings}
    parser = LockedCommand().create_parser("manage.py", "yours")
    own = [each for each in parser._actions if not known & {*each.option_strings}]
    return f"{_arguments(own)}\n\n{_as_code(parser.epilog or '')}"


def _arguments(actions: list[argparse.Action]) -> str:
    rows = []
    for action in actions:
        said = (action.help or "") % vars(action)
        has_default = action.option_strings and action.default not in (None, False, True, "", [])
        default = _code(action.default) if has_default else ""
        rows.append((f"`{_spelt(action, action.option_strings)}`", default, _as_code(said)))
    return table(("argument", "default", "meaning"), rows)


def _spelt(action: argparse.Action, names: Sequence[str]) -> str:
    value = str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())
    if action.nargs == 0:
        value = ""
    elif action.nargs in ("*", "+", argparse.REMAINDER):
        value += " …"
    return f"{', '.join(names)} {value}".strip()


def _usage(action: argparse.Action) -> str:
    spelt = _spelt(action, action.option_strings[:1])
    optional = action.nargs == "*" or (action.option_strings and not action.required)
    return f"[{spelt}]" if optional else spelt


def _wrapped(words: list[str], width: int = 90) -> str:
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("   ")
        lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return "\n".join(lines)


# Permissions


def all_permissions() -> list[tuple[str, str]]:
    """Return the permissions that the models of distlock make, and what each one allows."""
    found = []
    for model in apps.get_app_config("distlock").get_models():
        meta = model._meta
        found += [
            (f"distlock.{action}_{meta.model_name}", f"Can {action} {meta.verbose_name}")
            for action in meta.default_permissions
        ]
        found += [(f"distlock.{codename}", str(says)) for codename, says in meta.permissions]
    return found


def permissions() -> str:
    rows = []
    for name, says in all_permissions():
        made = name.removeprefix("distlock.").startswith(("add_", "change_", "delete_"))
        rows.append(
            (f"`{name}`", "Django adds it; distlock does not use it." if made else f"{says}.")
        )
    return table(("permission", "meaning"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "checks": checks,
    "command_options": command_options,
    "commands": commands,
    "database_options": database_options,
    "entry_keys": entry_keys,
    "etcd_options": etcd_options,
    "exit_codes": exit_codes,
    "permissions": permissions,
    "zookeeper_options": zookeeper_options,
}
_MARK = re.compile(r"^```\{generated\} (\w+)\n```$", re.MULTILINE)


def expanded(page: str) -> str:
    """Return the text of a page, with the parts in place of the marks."""
    return _MARK.sub(lambda mark: PARTS[mark[1]](), page)
