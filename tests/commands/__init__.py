"""The management command, in processes and on terminals of its own."""
