"""Plans and weights on disk, and running them in a process that never made them."""
