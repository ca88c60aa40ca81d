"""Composites: layers that take several operators, added to the graphs of modules and model
readers.
"""
