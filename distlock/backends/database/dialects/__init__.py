"""What is said to each database engine, and how its answers read."""
