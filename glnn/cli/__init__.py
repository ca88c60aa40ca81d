"""The command line: `glnn VERB …`, one verb a file."""

from glnn.cli.app import main

__all__ = ["main"]
