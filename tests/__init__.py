"""Behaviour of distlock, shown on real servers."""
