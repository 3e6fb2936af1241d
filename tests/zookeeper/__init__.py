"""Locks in ZooKeeper: what is in its tree, what its servers see, and what they may do to us."""
