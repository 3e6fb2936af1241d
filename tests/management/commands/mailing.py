"""Says that it runs, beside one other at most, and goes on until it is told something."""

from distlock.commands import LockedCommand
from tests.children import read_line, write_line


class Command(LockedCommand):
    lock_name = "mailing:{shop}"
    lock_slots = 2
    lock_lease = 6

    def add_arguments(self, parser):
        parser.add_argument("--shop", default="main")

    def handle(self, **options):
        write_line("running", self.lock.token)
        write_line("told", read_line())
