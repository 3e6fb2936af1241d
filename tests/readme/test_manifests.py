"""The files for Kubernetes, Compose, systemd and uWSGI are well-formed, and start what exists.

None of these programs is here to read them.
"""

from __future__ import annotations

import re
import shlex
from configparser import ConfigParser
from typing import Any

import pytest
import yaml
from django.core.management import load_command_class

from tests.readme.pages import snippets


@pytest.mark.parametrize("file", snippets("yaml"), ids=lambda file: file.split("\n")[1].strip())
def test_yaml_is_well_formed(file: str) -> None:
    document = yaml.safe_load(file)
    assert {"kind", "services"} & set(document)
    assert is_known(shlex.join(words(document)))


@pytest.mark.parametrize("file", snippets("ini"), ids=lambda file: file.split("\n")[0])
def test_ini_is_well_formed(file: str) -> None:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(file)
    assert parser.sections()
    assert is_known(" ".join(parser.get("Service", "ExecStart", fallback="").split()))


def words(document: Any) -> list[str]:
    """Return all texts in a document, in order."""
    if isinstance(document, dict):
        return [word for value in document.values() for word in words(value)]
    if isinstance(document, list):
        return [word for value in document for word in words(value)]
    return document.split() if isinstance(document, str) else []


def is_known(commands: str) -> bool:
    """Return whether `manage.py locks` has all the verbs and options given here; else it exits."""
    parser = load_command_class("distlock", "locks").create_parser("manage.py", "locks")
    for arguments in re.findall(r"manage\.py locks (.*?) --(?= )", commands):
        parser.parse_args([*shlex.split(arguments), "--", "true"])
    return True
