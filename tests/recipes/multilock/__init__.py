"""MultiLock."""
