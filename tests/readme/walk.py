"""Pages that are typed in word for word: what a reader does, and what the terminals show then.

- A piece of Python whose first line is ``# path/to/file.py`` is a file. It takes the place of what
  is there; in ``settings.py``, that of the setting of this name, whose entries ``...`` stands for.
- A piece of ``console`` is typed, each line after ``$``, in the terminal ("first" or "second") that
  the paragraph above it names, or else in that of the last one. All else in it is what the terminal
  shows; ``…`` stands for any text, and white space does not count. Without a ``$`` it goes on with
  what the last command shows.
- "Press **Enter** in the first terminal", also Ctrl-Z and Ctrl-C.
- "Open `/path/`" in the browser; "**words**" in its paragraph are on the page.
- A section whose title has the word PostgreSQL is for those who use it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.commands.terminal import Terminal
from tests.servers.guard import descendants

KEYS = {"Enter": "\n", "Ctrl-C": "\x03", "Ctrl-Z": "\x1a"}
#: seconds
LIMIT = 150.0

_PART = re.compile(
    r"^```(?P<language>\w*)\n(?P<code>[\s\S]*?)^```$"
    r"|^(?P<title>#+ .+)$"
    r"|(?P<words>(?:^(?!```|#).*\S.*\n)+)",
    re.MULTILINE,
)
_FILE = re.compile(r"# ([\w/]+\.py)\n")
_TERMINAL = re.compile(r"(first|second)\s+terminal")
_PRESSED = re.compile(r"[Pp]ress\s+\*\*([\w-]+)\*\*\s+in\s+the\s+(first|second)\s+terminal")
_OPENED = re.compile(r"[Oo]pen\s+(?:\S*?\d)?`?(/[\w/]*)")
#: What the shell of a terminal says before it is ready: the exit code of the last command.
_READY = re.compile("\x1e(\\d+)\x1e")
#: The shell tells of a killed job now or with its next prompt, and may show it as stopped before.
_KILLED = re.compile(r"\[\d\][+-]? +Killed +.*")
#: What a holder logs on a machine that stands still now and then.
_SLOW = re.compile(r"renewal on '.*")
_JOB = re.compile(r"\[\d\][+-]? +(Killed|Stopped) +.*")


class Step(NamedTuple):
    """What a reader does or sees; ``where`` is a terminal, or the path of a file or of a page."""

    what: str
    where: str
    text: str = ""


def steps(page: str, *, section: str = "", leave_out: tuple[str, ...] = ()) -> list[Step]:
    """Return what a page tells its reader to do, in order.

    ``section`` is the title of the only one that counts; those whose titles have a word of
    ``leave_out`` do not.
    """
    found: list[Step] = []
    inside, terminal, above = not section, "first", ""
    for part in _PART.finditer(page):
        if title := part["title"]:
            name = title.lstrip("# ")
            if title.startswith(("# ", "## ")):
                inside = name == section if section else True
            inside = inside and not any(word in name for word in leave_out)
        if not inside:
            continue
        if words := part["words"]:
            above = words
            found += [Step("press", where, key) for key, where in _PRESSED.findall(words)]
            seen = "\n".join(re.findall(r"\*\*(.+?)\*\*", words))
            found += [Step("open", path, seen) for path in _OPENED.findall(words)]
        elif part["language"] == "console":
            terminal = (_TERMINAL.findall(above) or [terminal])[-1]
            found += _console(terminal, part["code"])
            above = ""
        elif part["language"] == "python":
            file = _FILE.match(part["code"])
            assert file, f"of which file is this?\n{part['code']}"
            found.append(Step("write", file[1], part["code"]))
    return found


def _console(terminal: str, code: str) -> list[Step]:
    found: list[Step] = []
    for line in code.splitlines():
        if line.startswith("$ "):
            found.append(Step("type", terminal, line[2:]))
        elif found and found[-1].what == "see":
            found[-1] = Step("see", terminal, f"{found[-1].text}\n{line}")
        else:
            found.append(Step("see", terminal, line))
    return found


def write(folder: Path, step: Step) -> None:
    """Make a file as the page has it; see above."""
    path = folder / step.where
    path.parent.mkdir(parents=True, exist_ok=True)
    text = step.text
    if path.name == "settings.py":
        there = path.read_text()
        name, *_ = re.findall(r"^(\w+) = ", text, re.MULTILINE)
        old = re.search(rf"^{name} = [\[{{]\n(.*?)^[\]}}]\n", there, re.MULTILINE | re.DOTALL)
        assert old, f"{step.where} has no {name}"
        text = there.replace(old[0], text.replace("    ...,\n", old[1]))
    path.write_text(text)


class Shell(Terminal):
    """A terminal of the reader's, with an interactive bash in it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        variables = {
            **environment,
            "HOME": str(folder),
            "INPUTRC": "/dev/null",
            "PROMPT_COMMAND": r'printf "\036%s\036" $?',
            "PS1": "",
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            "VIRTUAL_ENV_DISABLE_PROMPT": "1",
        }
        shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
        settings = [f"{name}={value}" for name, value in variables.items()]
        super().__init__("env", f"--chdir={folder}", "--ignore-environment", *settings, *shell)
        self._command, self._begin, self._expected, self._interrupted = "", 0, "…", False

    def enter(self, command: str) -> None:
        """Type a command, when the one before has ended and has shown what it was to show."""
        self.finish()
        self._command, self._begin, self._expected = command, len(self.printed), ""
        self._interrupted = False
        self.type(f"{command}\n")

    def expect(self, output: str) -> None:
        """Wait until the command has shown this, too."""
        self._expected += f"\n{output}"
        until = time.monotonic() + LIMIT
        while not self._matches() and not self._ended():
            assert time.monotonic() < until, self._difference()
            self._read(0.1)
        self._read(0.2)

    def press(self, key: str) -> None:
        self.type(KEYS[key])
        self._interrupted = key == "Ctrl-C"

    def finish(self) -> None:
        """Wait for the end of the command; it must have shown exactly what it was to show."""
        until = time.monotonic() + LIMIT
        while not (ended := self._ended()):
            assert time.monotonic() < until, f"{self._command} has not ended: {self._difference()}"
            self._read(0.1)
        assert self._matches(), self._difference()
        fails = self._interrupted or re.search(r"Traceback|Stopped", self._expected)
        assert fails or ended[1] == "0", f"{self._command}: exit code {ended[1]}"

    def close(self) -> None:
        for process in reversed(descendants(self.process.pid)[1:]):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        super().close()

    def _ended(self) -> re.Match[str] | None:
        return _READY.search(self.printed, self._begin)

    def _shown(self) -> str:
        text = _READY.sub("", self.plain(self.printed[self._begin :])).replace("\r", "")
        # The echo is not always first: the shell may tell of a job before it.
        return _SLOW.sub("", text.replace(f"{self._command}\n", "", 1))

    def _matches(self) -> bool:
        # The shell tells of a job that was stopped or killed now, or at one of its next prompts.
        left_out = _KILLED if "Stopped" in self._expected else _JOB
        expected, shown = left_out.sub("", self._expected), left_out.sub("", self._shown())
        pattern = re.escape(" ".join(expected.split())).replace("…", ".*?")
        pattern = pattern.replace(r".*?\ ", r"(?:.*?\ )?").replace(r"\ .*?", r"(?:\ .*?)?")
        return re.fullmatch(pattern, " ".join(shown.split())) is not None

    def _difference(self) -> str:
        return f"{self._command}\nexpected:\n{self._expected}\nshown:\n{self._shown()}"
