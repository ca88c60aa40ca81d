"""The command line: `glnn VERB …`, one verb a file."""

from glnn.cli.app import load, main

__all__ = ["load", "main"]
