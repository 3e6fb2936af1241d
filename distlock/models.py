"""The tables in which the database backend keeps its locks, and the records of recipes.

Databases compare their fields exactly. Their defaults are part of the statement.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.translation import gettext_lazy as _

from distlock.registry import ENTRIES, Entry
from distlock.types.lease import MAX_DESCRIPTION
from distlock.types.values import MAX_NAME, MAX_OWNER, escaped

if not apps.is_installed("distlock"):
    raise ImproperlyConfigured(
        "distlock is not in INSTALLED_APPS. Add 'distlock' there, then run `manage.py migrate`."
    )

#: By vendor, a collation that compares code points, so that no two characters are equal.
_EXACT = {"mysql": "utf8mb4_bin", "postgresql": "C"}


class _Exact:
    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters = dict(super().db_parameters(connection))  # type: ignore[misc]
        if collation := _EXACT.get(connection.vendor):
            parameters["collation"] = collation
        return parameters


class ExactCharField(_Exact, models.CharField):  # type: ignore[type-arg]
    """Text that databases store whole, compare exactly and sort by code point.

    For MySQL's default collations ``Lock`` and ``lock`` are equal, and so are ``e`` and ``é``. A
    table whose character set is not utf8mb4 cannot store every name.
    """


class NoPadCharField(ExactCharField):
    """An ExactCharField in which spaces at the end count, too.

    For the usual collations of MariaDB and MySQL a text that ends with spaces equals one without:
    https://dev.mysql.com/doc/refman/8.4/en/charset-binary-collations.html
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


class ExactTextField(_Exact, models.TextField):  # type: ignore[type-arg]
    """See ExactCharField, for text without a limit: a table's character set must lose nothing."""


class Literal(models.Value):
    """A default that is written out in the statement which makes the table.

    If that statement had parameters, Django would add the constraints with the next statement. A
    table without its unique key, even for a moment, grants a lock to everybody.
    """

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[()]]:
        return str(connection.schema_editor().quote_value(self.value)), ()


class DatabaseLock(models.Model):
    """A lock that has been taken at least once; the row stays when it is freed.

    ``owner`` is empty while the lock is free; the other columns then describe its last hold, and
    ``nonce`` says how that ended: "broken", "expired" (swept), or empty for released.
    ``acquired_at`` and ``expires_at`` are times of the database's own clock. Freeing a lock sets
    ``expires_at`` to the time at which it was freed. A held lock was taken or renewed last
    ``lease`` seconds before ``expires_at``. The times have no index, because every renewal would
    have to change it.
    """

    id = models.BigAutoField(primary_key=True)
    lock = ExactCharField(_("name"), max_length=MAX_NAME)
    description = ExactCharField(
        _("description"), max_length=MAX_DESCRIPTION, default="", blank=True, db_default=Literal("")
    )
    owner = ExactCharField(_("owner"), max_length=MAX_OWNER + 1, default="", blank=True)
    nonce = ExactCharField(_("nonce of the hold"), max_length=32, default="", blank=True)
    host = ExactCharField(_("host"), max_length=255, default="", blank=True)
    process = models.BigIntegerField(_("process"), default=0)
    thread = ExactCharField(_("thread"), max_length=255, default="", blank=True)
    token = models.BigIntegerField(_("fencing token"))
    lease = models.FloatField(_("seconds of the lease"), default=0.0, db_default=Literal(0.0))
    renews = models.BooleanField(_("is renewed"), default=False, db_default=Literal(False))
    acquired_at = models.DateTimeField(_("held since"))
    expires_at = models.DateTimeField(_("held until"))

    class Meta:
        db_table = "database_lock"
        verbose_name = _("database lock")
        verbose_name_plural = _("database locks")
        constraints = [models.UniqueConstraint(fields=["lock"], name="uiq_idx_lock")]
        permissions = [
            ("force_release_lock", _("Can force the release of a lock")),
            ("sweep_locks", _("Can sweep locks")),
            ("view_error_text", _("Can see the texts of errors")),
        ]

    def __str__(self) -> str:
        return escaped(self.lock)


class HeldLock(DatabaseLock):
    """The held locks of all backends, as the admin lists them: it has no rows of its own.

    The permission to see them is that of DatabaseLock.
    """

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("held lock")
        verbose_name_plural = _("held locks")


class AuditEntry(models.Model):
    """An operation on a lock or on the coordination family; see distlock.audit.

    ``name`` is empty for a whole backend. ``action`` is a word for scripts, ``text`` for people.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    using = ExactCharField(max_length=255)
    kind = ExactCharField(max_length=20)
    name = ExactCharField(max_length=MAX_NAME)
    action = ExactCharField(max_length=40)
    who = ExactCharField(max_length=255)
    text = ExactTextField()

    class Meta:
        db_table = "database_lock_audit"
        default_permissions = ()
        indexes = [models.Index(fields=["name"], name="idx_lock_audit_name")]


# The three tables of distlock.backends.database.store. Revisions, and the ends of sessions, are
# microseconds since 1970 by the database's clock. No foreign keys: what they would do is done, and
# checked, by the statements, and rows that nobody can lock from elsewhere cannot be held up.


class RecordDirectory(models.Model):
    """A directory of records. Every change of its records first locks this row."""

    id = models.BigAutoField(primary_key=True)
    name = NoPadCharField(max_length=600)
    revision = models.BigIntegerField()

    class Meta:
        db_table = "database_lock_directory"
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["name"], name="uiq_idx_lock_directory")]

    def __str__(self) -> str:
        return escaped(self.name)


class DatabaseRecord(models.Model):
    """A record: ``value`` is JSON, ``session`` the id of the session it is bound to, if any."""

    id = models.BigAutoField(primary_key=True)
    directory = models.BigIntegerField()
    name = NoPadCharField(max_length=255)
    value = ExactTextField()
    created = models.BigIntegerField()
    revision = models.BigIntegerField()
    session = NoPadCharField(max_length=32, null=True)

    class Meta:
        db_table = "database_lock_record"
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["directory", "name"], name="uiq_idx_lock_record")
        ]
        indexes = [models.Index(fields=["session", "directory"], name="idx_lock_record_session")]

    def __str__(self) -> str:
        return escaped(self.name)


class RecordSession(models.Model):
    """A session, which lasts for ``duration`` microseconds from each renewal on.

    Its end has no index, because every renewal would have to change it: there is one row for each
    process. A row that has ended counts until it is deleted, and its records with it.
    """

    id = NoPadCharField(max_length=32, primary_key=True)
    duration = models.BigIntegerField()
    expires_at = models.BigIntegerField()

    class Meta:
        db_table = "database_lock_session"
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.id)


def _shown(entry: Entry) -> type[RecordDirectory]:
    """Make the model for one kind of recipe in the admin, over all backends.

    It has no rows of its own, but pages, permissions, and entries in the admin's log.
    """
    meta = {
        "proxy": True,
        "default_permissions": ("view",),
        "verbose_name": entry.labels[0],
        "verbose_name_plural": entry.labels[1],
        "permissions": list(entry.permissions),
    }
    attributes = {"__module__": __name__, "Meta": type("Meta", (), meta)}
    return type(entry.model, (RecordDirectory,), attributes)


#: These models by the kind of recipe.
SHOWN = {entry.kind: _shown(entry) for entry in ENTRIES}
# `manage.py shell` imports each model from here, and complains of those that it cannot.
globals().update({model.__name__: model for model in SHOWN.values()})
