"""Pictures: their files, what is done to one before a network sees it, and the names of classes."""

from glnn.images.files import read_picture, write_picture

__all__ = ["read_picture", "write_picture"]
