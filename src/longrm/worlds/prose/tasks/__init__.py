"""What prose worlds ask, one task a file."""
