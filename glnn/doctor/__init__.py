"""Whether a device and its driver can be believed, and what is slow there."""
