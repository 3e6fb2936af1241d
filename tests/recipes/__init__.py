"""What each recipe promises, on every backend."""
