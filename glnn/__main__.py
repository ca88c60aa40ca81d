"""`python -m glnn`: the command line."""

from glnn.cli import main

main()
