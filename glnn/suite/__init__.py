"""Measurements of one device for docs/boards.md: `glnn bench --suite`."""
