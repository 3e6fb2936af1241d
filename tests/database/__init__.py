"""The database backend: what only it promises, on the real engines."""
