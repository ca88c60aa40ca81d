"""Code that only the five documents need on which glnn is based: see docs/documents.md.

Their kernels are in `shaders/documents`. Only the command line imports this part; other parts find
it through `glnn.registry`.
"""
