"""``manage.py locks completion``: what bash, zsh and fish propose when Tab is pressed."""

from __future__ import annotations

import subprocess

import pytest

from tests.servers.debian import program

pytestmark = pytest.mark.once

#: What is typed, and what it becomes with Tab.
TYPED = [
    ("manage.py loc", "locks"),
    ("manage.py makemig", "makemigrations"),
    ("./manage.py locks rel", "release"),
    ("manage.py locks queue pur", "purge"),
    ("manage.py locks show stock --usi", "--using"),
    ("manage.py locks list --using shop-", "shop-locks"),
    ("manage.py locks queue dead letters --using shop-", "shop-locks"),
    ("manage.py locks list --kind sema", "semaphore"),
    ("manage.py locks ping shop-", "shop-locks"),
    ("python manage.py locks list --sort wai", "waiters"),
    ("python3 ./manage.py locks elec", "election"),
]


@pytest.fixture
def script(settings, backend_settings, run, tmp_path):
    """``script("bash")``: the file with what the command prints."""
    settings.DISTLOCK = {
        **backend_settings("local"),
        **backend_settings("local", alias="shop-locks"),
    }

    def write(shell):
        result = run("completion", shell)
        assert (result.err, result.code) == ("", 0)
        path = tmp_path / shell
        path.write_text(result.out)
        return path

    return write


def test_bash(script, tmp_path):
    calls = "\n".join(f"complete_line {line}" for line, _ in TYPED)
    (tmp_path / "try").write_text(f"""
source {script("bash")}
complete_line() {{
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  local registered=$(complete -p "${{1##*/}}")
  registered=${{registered#* -F }}
  ${{registered%% *}}
  echo "${{COMPREPLY[*]}}"
}}
{calls}
""")
    printed = subprocess.run(
        ["bash", "--norc", tmp_path / "try"], capture_output=True, text=True, check=True
    )
    assert printed.stderr == ""
    assert printed.stdout.splitlines() == [whole for _, whole in TYPED]


def test_fish(script):
    calls = "; ".join(f"complete -C '{line}'" for line, _ in TYPED)
    printed = subprocess.run(
        [program("fish"), "--no-config", "-c", f"source {script('fish')}; {calls}"],
        capture_output=True,
        text=True,
        check=True,
    )
    proposed = [line.split("\t")[0] for line in printed.stdout.splitlines()]
    assert proposed == [whole for _, whole in TYPED]


@pytest.mark.timeout(120)
def test_zsh(script, terminal, tmp_path):
    shell = terminal(program=(program("zsh"), "-f", "-i"), env={"PS1": "$ "}, columns=200)
    shell.see(r"\$ ")
    shell.type(f"autoload -Uz compinit && compinit -u -d {tmp_path}/dump; echo rea'dy'\n")
    shell.see("\nready")
    shell.type(f'eval "$(<{script("zsh")})"; echo do"ne"\n')
    shell.see("\ndone")
    for line, whole in TYPED:
        shell.type(f"{line}\t")
        shell.see(f"{line.rpartition(' ')[0]} {whole} ")
        shell.type("\x15")  # the line is empty again


def test_without_shtab_the_error_says_what_to_install(local, terminal, tmp_path):
    (tmp_path / "shtab.py").write_text("raise ImportError('not here')")
    ended = terminal("completion", "bash", env={"PYTHONPATH": str(tmp_path)})
    assert ended.end() == 1
    assert 'this needs shtab: pip install "django-distlock[completion]"' in "".join(ended.lines)


def test_a_shell_that_there_is_not_is_refused(local, run):
    refused = run("completion", "ksh")
    assert (refused.code, "invalid choice: 'ksh'" in refused.err) == (1, True)
