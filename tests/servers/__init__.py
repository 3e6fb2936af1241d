"""Real servers for the tests, each on a free port and in a folder of its own."""
