from __future__ import annotations

from django_tenants.models import DomainMixin, TenantMixin


class Tenant(TenantMixin):
    """A customer."""

    auto_create_schema = True


class Domain(DomainMixin):
    """Where a customer is served."""
