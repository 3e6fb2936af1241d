"""What a process does with locks: who holds them here, who waits, renewal, losses, clean-up."""
