"""Sizes, types, layouts, settings and files: what every other part stands on."""
