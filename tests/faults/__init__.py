"""What locks must withstand: servers, networks, processes and clocks that fail, and their users."""
