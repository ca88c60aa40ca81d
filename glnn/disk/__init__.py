"""What can be made again, kept on disk: programs, plans, packed weights."""

from glnn.disk.disk import Disk, Listed, digest
from glnn.disk.draft import Draft
from glnn.disk.entry import Entry, OddError

__all__ = ["Disk", "Draft", "Entry", "Listed", "OddError", "digest"]
