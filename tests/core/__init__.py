"""What the process does by itself, whatever the backend: on the local one."""
