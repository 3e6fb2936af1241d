"""What locks are spoken of in: owners, leases, what may be asked for, and checks of arguments."""
