"""Disks that stand still for as long as a test wants, and disks whose power may be cut."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.servers.debian import program

#: ``fsync`` and ``fdatasync`` that wait for as long as a file is there.
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int when_the_disk_moves(const char *name, int descriptor) {
    const char *mark = getenv("TESTS_STALLED_DISK");
    while (mark && access(mark, F_OK) == 0) usleep(5000);
    return ((int (*)(int)) dlsym(RTLD_NEXT, name))(descriptor);
}
int fsync(int descriptor) { return when_the_disk_moves("fsync", descriptor); }
int fdatasync(int descriptor) { return when_the_disk_moves("fdatasync", descriptor); }
"""

#: ``fsync`` and ``fdatasync`` that copy the file as it is on the disk then.
_COPYING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int copy(const char *name, int descriptor) {
    char link[64], path[4096], copied[4112], part[65536];
    off_t at = 0;
    ssize_t length;
    int result = ((int (*)(int)) dlsym(RTLD_NEXT, name))(descriptor);
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    if ((length = readlink(link, path, sizeof path - 1)) < 0) return result;
    path[length] = 0;
    snprintf(copied, sizeof copied, "%s.synced", path);
    int file = open(copied, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0) return result;
    while ((length = pread(descriptor, part, sizeof part, at)) > 0) {
        if (write(file, part, length) != length) break;
        at += length;
    }
    close(file);
    return result;
}
int fsync(int descriptor) { return copy("fsync", descriptor); }
int fdatasync(int descriptor) { return copy("fdatasync", descriptor); }
"""


class Disk:
    """The disk of one server, whose command has to be begun with ``prefix()``.

    A stalled one takes what is written, but never says that it is safe. Whoever does not wait for
    that goes on, as a ZooKeeper server does with what needs no write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = folder / "stalled"

    def prefix(self) -> list[str]:
        """Return how the server's command begins."""
        library = _compiled(_SOURCE, self._folder)
        return ["env", f"LD_PRELOAD={library}", f"TESTS_STALLED_DISK={self._mark}"]

    def stall(self) -> None:
        """Stand still from now on."""
        self._mark.touch()

    def go_on(self) -> None:
        """Do what has been asked for meanwhile, and what will be."""
        self._mark.unlink(missing_ok=True)


class PowerCut:
    """What a power cut would leave of a SQLite database: what was synced, and nothing else.

    Of a process that has ``env`` in its environment; others may only read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.env = {"LD_PRELOAD": str(_compiled(_COPYING, folder))}

    def rows(self, database: str, query: str) -> list[tuple[Any, ...]]:
        """Return what a query finds after the power comes back."""
        after = self._folder / "after.sqlite3"
        for suffix in ("", "-wal", "-shm", "-journal"):
            after.with_name(after.name + suffix).unlink(missing_ok=True)
        # Before the process begins all was synced.
        for suffix in ("", "-wal"):
            synced = Path(f"{database}{suffix}.synced")
            if (found := synced if synced.exists() else Path(database + suffix)).exists():
                shutil.copyfile(found, after.with_name(after.name + suffix))
        with closing(sqlite3.connect(after)) as connection:
            return connection.execute(query).fetchall()


def _compiled(source: str, folder: Path) -> Path:
    library = folder / "disk.so"
    if not library.exists():
        file = folder / "disk.c"
        file.write_text(source)
        command = [program("gcc"), "-shared", "-fPIC", "-o", library, file, "-ldl"]
        subprocess.run(command, check=True)
    return library
