"""The pinned requirements are those of the groups in pyproject.toml; `make lock` exports them."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ["3.11", "3.12", "3.13"]
#: File, oldest Python and options of each export.
EXPORTS = re.findall(
    r"^export_groups (\S+) (\S+) (.*)$", (ROOT / "tools/lock").read_text(), re.MULTILINE
)
FILES = [file for file, *_ in EXPORTS]


def of_group(name):
    """Return the requirements of a group, and of those that it includes."""
    for entry in PROJECT["dependency-groups"][name]:
        if isinstance(entry, str):
            yield Requirement(entry)
        else:
            yield from of_group(entry["include-group"])


def pins(file, python):
    """Return the version of each package that is installed with this Python."""
    environment = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
    }
    lines = [line for line in (ROOT / file).read_text().splitlines() if line[0] != "#"]
    found = {}
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (pin,) = requirement.specifier
            assert pin.operator == "==", requirement
            assert found.setdefault(canonicalize_name(requirement.name), pin.version) == pin.version
    return found, environment


@pytest.mark.parametrize(
    ("file", "python", "options"),
    [
        (file, python, options)
        for file, oldest, options in EXPORTS
        for python in PYTHONS[PYTHONS.index(oldest) :]
    ],
)
def test_pins_fit_their_groups(file, python, options):
    pinned, environment = pins(file, python)
    wanted = [each for group in re.findall(r"--group (\w+)", options) for each in of_group(group)]
    assert wanted
    for requirement in wanted:
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, requirement


@pytest.mark.parametrize("python", PYTHONS)
def test_the_tests_run_with_what_the_extras_ask_for(python):
    pinned, _ = pins("requirements.txt", python)
    for extra in PROJECT["project"]["optional-dependencies"].values():
        for requirement in map(Requirement, extra):
            assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, requirement


@pytest.mark.parametrize("file", FILES)
def test_no_place_to_install_from_is_named(file):
    assert not re.search(r"://|^-|@", (ROOT / file).read_text(), re.MULTILINE)
