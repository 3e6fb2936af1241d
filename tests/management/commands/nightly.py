"""Says that it runs, and goes on until it is told something."""

from distlock.commands import LockedCommand
from tests.children import read_line, write_line


class Command(LockedCommand):
    lock_lease = 6  # a lock that was broken is noticed with the next renewal
    help = "Does what is done at night."

    def handle(self, **options):
        write_line("running", self.lock.token)
        write_line("told", read_line())
