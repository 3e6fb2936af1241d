"""Recipes: coordination primitives on top of locks."""
