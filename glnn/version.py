"""The version of glnn, for parts of it: nobody imports the package's root from within."""

VERSION = "1.0.0"
