"""Code that only the five documents need that glnn grew out of: see docs/documents.md.

Their kernels are in `shaders/documents`. Nothing but the command line imports this part; what it
adds is found through `glnn.registry`.
"""
