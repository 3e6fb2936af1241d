"""The table in which the database backend keeps its locks."""

from __future__ import annotations

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.translation import gettext_lazy as _

from distlock.names import MAX_DESCRIPTION, MAX_NAME, MAX_OWNER


class NameField(models.CharField):  # type: ignore[type-arg]
    """A name that databases compare exactly.

    MySQL's default collations take ``Lock`` and ``lock``, or ``e`` and ``é``, for one.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, str | None]:
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            parameters["collation"] = "utf8mb4_bin"
        return parameters


class DatabaseLock(models.Model):
    """A lock that has been taken at least once; the row stays when it is freed.

    ``owner`` is empty while the lock is free. ``acquired_at`` and ``expires_at`` are of the
    database's own clock; freeing moves ``expires_at`` to the moment it was freed.
    """

    id = models.BigAutoField(primary_key=True)
    lock = NameField(_("name"), max_length=MAX_NAME)
    description = models.CharField(
        _("description"), max_length=MAX_DESCRIPTION, default="", blank=True, db_default=""
    )
    owner = NameField(_("owner"), max_length=MAX_OWNER + 1, default="", blank=True)
    nonce = models.CharField(_("nonce of the hold"), max_length=32, default="", blank=True)
    host = models.CharField(_("host"), max_length=255, default="", blank=True)
    process = models.BigIntegerField(_("process"), default=0)
    thread = models.CharField(_("thread"), max_length=255, default="", blank=True)
    token = models.BigIntegerField(_("fencing token"))
    acquired_at = models.DateTimeField(_("held since"))
    expires_at = models.DateTimeField(_("held until"))

    class Meta:
        db_table = "database_lock"
        verbose_name = _("database lock")
        verbose_name_plural = _("database locks")
        constraints = [models.UniqueConstraint(fields=["lock"], name="uiq_idx_lock")]
        indexes = [models.Index(fields=["expires_at"], name="idx_lock_expires_at")]

    def __str__(self) -> str:
        return self.lock
