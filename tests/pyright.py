"""Runs pyright, which `make` has installed; see Makefile."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYRIGHT = ROOT / ".envs/pyright/node_modules/.bin/pyright"


def complaints(*paths):
    """Return (file's name, line, message) of every error or warning."""
    assert PYRIGHT.exists(), f"{PYRIGHT} is not installed; run: make .envs/pyright/.ready"
    run = subprocess.run(
        [PYRIGHT, "--outputjson", "--pythonpath", sys.executable, *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=160,
        check=False,
    )
    # Its lines count from 0.
    return [
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1, found["message"])
        for found in json.loads(run.stdout)["generalDiagnostics"]
    ]
