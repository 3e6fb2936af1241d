"""The pages about held locks in Django's admin."""
