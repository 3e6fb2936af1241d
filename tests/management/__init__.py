"""Commands that the tests run."""
