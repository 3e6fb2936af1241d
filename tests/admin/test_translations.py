"""The catalogs that come with the panel are complete, and compiled."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import polib
import pytest

import distlock
from distlock.admin.locks import HoldRef
from tests.servers.debian import program

PACKAGE = Path(distlock.__file__).parent
LANGUAGES = ["de", "zh_Hans"]


def catalog(language, suffix="po", folder=PACKAGE):
    path = folder / "locale" / language / "LC_MESSAGES" / f"django.{suffix}"
    return (polib.pofile if suffix == "po" else polib.mofile)(str(path))


def key(entry):
    return entry.msgctxt, entry.msgid, entry.msgid_plural


@pytest.fixture(scope="module")
def extracted(tmp_path_factory):
    """The package with catalogs that have just been extracted from it."""
    program("xgettext")
    folder = tmp_path_factory.mktemp("messages") / "distlock"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    options = [argument for language in LANGUAGES for argument in ("-l", language)]
    command = [sys.executable, "-P", "-m", "django", "makemessages", *options, "--no-obsolete"]
    without = {key: os.environ[key] for key in os.environ if key != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(command, cwd=folder, env=without, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("language", LANGUAGES)
def test_everything_that_is_said_is_translated(extracted, language):
    said = {key(entry) for entry in catalog(language, folder=extracted)}
    there = catalog(language)
    assert {key(entry) for entry in there} == said
    assert there.percent_translated() == 100
    assert there.fuzzy_entries() == []
    assert [entry.msgid for entry in there if entry.obsolete] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_compiled_is_what_is_written(language):
    written = {key(entry): (entry.msgstr, entry.msgstr_plural) for entry in catalog(language)}
    compiled = {
        key(entry): (entry.msgstr, entry.msgstr_plural) for entry in catalog(language, "mo")
    }
    assert compiled == written


@pytest.mark.parametrize("language", LANGUAGES)
def test_placeholders_survive_translation(language):
    import re

    def placeholders(text):
        return sorted(re.findall(r"%(?:\(\w+\))?[sd]|%%d", text))

    for entry in catalog(language):
        if entry.msgid_plural:
            *singular, plural = (text for _, text in sorted(entry.msgstr_plural.items()))
            assert placeholders(plural) == placeholders(entry.msgid_plural)
            assert set(placeholders("".join(singular))) <= set(placeholders(entry.msgid_plural))
        else:
            assert placeholders(entry.msgstr) == placeholders(entry.msgid)


@pytest.mark.parametrize(
    ("language", "title", "state", "ask"),
    [
        ("de", "Gehaltene Sperren", "Gehalten", "Freigabe erzwingen"),
        ("zh-hans", "持有中的锁", "持有中", "强制释放"),
    ],
)
def test_the_pages_speak_it(operator, url, local, taken, use_language, language, title, state, ask):
    use_language(operator, language)
    taken("a")
    page = operator.get(url("list")).content.decode()
    assert f"<h1>{title}</h1>" in page
    assert state in page
    ref = str(HoldRef.of(local.inspect("a")))
    assert ask in operator.post(url("release"), {"hold": [ref]}).content.decode()
    lock = operator.get(url("lock"), {"backend": "default", "name": "a"})
    assert lock.status_code == 200
