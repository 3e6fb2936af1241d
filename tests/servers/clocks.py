"""Clocks of programs written in Go, which can be moved while they run."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from tests.servers.debian import program

#: Go asks neither libc nor, as a rule, the kernel for the time: it calls a function of the library
#: that the kernel maps into each process, which it finds by the process's auxiliary vector. There
#: it finds this one instead, which adds the seconds that the test has written to a file.
_SOURCE = r"""
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile double *ahead;

static int clock_of_tests(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += (long) *ahead;
    return failed;
}

/* Its names on amd64 and on arm64. */
static char strings[] = "\0__vdso_clock_gettime\0__kernel_clock_gettime";
static unsigned hash[] = {1, 3, 1, 0, 2, 0};
static Elf64_Sym symbols[3];
static Elf64_Verdef version = {.vd_flags = VER_FLG_BASE};
static Elf64_Dyn dynamic[5];
static struct { Elf64_Ehdr header; Elf64_Phdr parts[2]; } library;

__attribute__((constructor)) static void replace(int argc, char **argv, char **environment) {
    int file = open(getenv("TESTS_CLOCK"), O_RDONLY);
    ahead = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (ahead == MAP_FAILED) abort();
    close(file);
    for (int i = 1; i < 3; i++) {
        symbols[i].st_name = i == 1 ? 1 : 22;
        symbols[i].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
        symbols[i].st_shndx = 1;
        symbols[i].st_value = (Elf64_Addr) clock_of_tests;
    }
    dynamic[0] = (Elf64_Dyn) {DT_STRTAB, {(Elf64_Addr) strings}};
    dynamic[1] = (Elf64_Dyn) {DT_SYMTAB, {(Elf64_Addr) symbols}};
    dynamic[2] = (Elf64_Dyn) {DT_HASH, {(Elf64_Addr) hash}};
    dynamic[3] = (Elf64_Dyn) {DT_VERDEF, {(Elf64_Addr) &version}};
    Elf64_Addr base = (Elf64_Addr) &library;
    library.header.e_phoff = (char *) library.parts - (char *) &library;
    library.header.e_phnum = 2;
    library.parts[0] = (Elf64_Phdr) {.p_type = PT_LOAD, .p_vaddr = base};
    library.parts[1] = (Elf64_Phdr) {.p_type = PT_DYNAMIC, .p_offset = (Elf64_Addr) dynamic - base};
    while (*environment++);
    for (Elf64_auxv_t *entry = (void *) environment; entry->a_type != AT_NULL; entry++)
        if (entry->a_type == AT_SYSINFO_EHDR) entry->a_un.a_val = base;
}
"""


class Clock:
    """The wall clock of one server, whose command has to be begun with ``prefix()``.

    The clock that only grows stays as it is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ahead = folder / "seconds_ahead"

    def prefix(self) -> list[str]:
        """Return how the server's command begins."""
        library = self._folder / "clock.so"
        if not library.exists():
            source = self._folder / "clock.c"
            source.write_text(_SOURCE)
            files = ["-o", str(library), str(source)]
            subprocess.run([program("gcc"), "-shared", "-fPIC", *files], check=True)
            self.move(0)
        return ["env", f"LD_PRELOAD={library}", f"TESTS_CLOCK={self._ahead}"]

    def move(self, seconds_ahead: float) -> None:
        """Be so many seconds ahead of the machine's clock from now on, or behind it."""
        with self._ahead.open("r+b" if self._ahead.exists() else "wb") as file:
            file.write(struct.pack("d", seconds_ahead))
