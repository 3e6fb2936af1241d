"""What distlock costs, side by side with its peers: ``python -m benchmarks --help``."""
