"""Makes the report of an account, for a while at the least."""

from distlock.commands import LockedCommand


class Command(LockedCommand):
    lock_name = "report:{account_id}:{kind}"
    lock_at_least = 1.5
    lock_description = "the monthly report"

    def add_arguments(self, parser):
        parser.add_argument("account_id", type=int)
        parser.add_argument("--kind", default="monthly")

    def handle(self, **options):
        return f"{self.lock.name} {self.lock.info().description}"
