"""A ticket shop that shows distlock at work."""
