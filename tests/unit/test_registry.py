"""Generic code is made from the registry, and names no recipe; the registry imports none."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from django.apps import apps

import distlock
from distlock.models import SHOWN
from distlock.recipes.description import Description
from distlock.registry import BY_KIND, ENTRIES
from distlock.types.lease import LOCK_KINDS, Kind

pytestmark = pytest.mark.once

PACKAGE = Path(distlock.__file__).parent
#: What has to work for each recipe, also for one that is added.
GENERIC = [
    *("admin", "backends", "commands", "management", "templatetags"),
    *("audit.py", "checks.py", "models.py"),
]
#: Of distlock.recipes, what belongs to no single recipe.
COMMON = {"cells", "description", "recipe"}
#: Options of commands that mean one recipe on purpose, and a word that is another one's.
EXCEPTIONS = {
    # `locks ping --leads ELECTION`, and the key of its JSON
    "commands/monitoring.py": {"Election", "distlock.recipes.election", "election"},
    # `locks run --elect ELECTION`
    "commands/run_program.py": {
        "Election",
        "distlock.recipes.candidates",
        "distlock.recipes.election",
    },
    # the progress that a command reports by an option of its own
    "commands/locked.py": {"distlock.recipes.progress"},
    # what a watch of etcd answers with
    "backends/etcd/watches.py": {"events"},
}


def words(path):
    """Return the names and texts of a file that are those of a recipe."""
    recipes = {
        word
        for entry in ENTRIES
        for word in (entry.model, entry.kind.name, entry.kind.value, entry.plural)
    }
    modules = {
        f"distlock.recipes.{module.stem}"
        for module in (PACKAGE / "recipes").glob("*.py")
        if module.stem not in COMMON | {"__init__"}
    }
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(ast.Name("Kind"), attr) if attr in recipes:
                yield attr
            case ast.ImportFrom(module, names):
                yield from (each.name for each in names if each.name in recipes)
                if module in modules:
                    yield module
            case ast.Constant(str(text)) if text in recipes:
                yield text


def test_generic_code_names_no_recipe():
    named = {}
    for room in GENERIC:
        for path in [PACKAGE / room] if room.endswith(".py") else (PACKAGE / room).rglob("*.py"):
            if found := {*words(path)}:
                named[path.relative_to(PACKAGE).as_posix()] = found
    assert named == EXCEPTIONS


def test_each_kind_that_is_no_lock_has_an_entry():
    assert {*BY_KIND} == {*SHOWN} == {*Kind} - {*LOCK_KINDS}


@pytest.mark.parametrize("kind", BY_KIND)
def test_an_entry_leads_to_a_description_whose_actions_have_its_permissions(kind):
    entry = BY_KIND[kind]
    assert isinstance(entry.description, Description)
    permissions = {f"distlock.{name}" for name, _ in entry.permissions}
    assert {action.permission for action in entry.description.actions} == permissions
    codes = {code for code, _ in SHOWN[kind]._meta.permissions}
    assert codes == {name for name, _ in entry.permissions}


def test_the_registry_imports_no_recipe():
    looked = "import sys, distlock.registry; print([m for m in sys.modules if '.recipes' in m])"
    found = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def test_the_shell_can_import_each_model():
    app = apps.get_app_config("distlock")
    assert all(getattr(app.models_module, one.__name__) is one for one in app.get_models())
