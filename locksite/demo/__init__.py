"""The site at work: real processes that take turns, and what happens when they do not."""
