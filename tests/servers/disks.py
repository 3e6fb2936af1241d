"""Disks that stand still for as long as a test wants: who asks for safe-keeping waits."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
        library = self._folder / "disk.so"
        if not library.exists():
            source = self._folder / "disk.c"
            source.write_text(_SOURCE)
            command = [program("gcc"), "-shared", "-fPIC", "-o", library, source, "-ldl"]
            subprocess.run(command, check=True)
        return ["env", f"LD_PRELOAD={library}", f"TESTS_STALLED_DISK={self._mark}"]

    def stall(self) -> None:
        """Stand still from now on."""
        self._mark.touch()

    def go_on(self) -> None:
        """Do what has been asked for meanwhile, and what will be."""
        self._mark.unlink(missing_ok=True)
