"""What every backend promises, asked of each of them in the same words."""
