"""Experiments, one short file each; every result carries the machine and device it came from."""
