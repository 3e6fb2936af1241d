"""Tests of the parts that need no server: arguments, settings, names, imports, types."""
