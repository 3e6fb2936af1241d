"""What the management commands do."""
