"""A project that puts a prefix before the names of all tables, as django-db-prefix does."""
