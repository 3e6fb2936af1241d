"""A database engine whose driver is not installed."""
