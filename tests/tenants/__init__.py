"""A project in which each customer has a schema of its own, by django-tenants."""
