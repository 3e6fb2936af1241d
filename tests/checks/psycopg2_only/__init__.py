"""Django's engine for PostgreSQL with an older driver."""
