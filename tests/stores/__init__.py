"""The contract of a record store, on every kind of backend that has one."""
