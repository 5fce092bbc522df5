"""A directory on any filesystem, and how an entry of it is published in one atomic step.

This package does not know what a checkpoint contains, nor which checkpoints a run has.
"""

from lockstep.storage.base import Storage
from lockstep.storage.lease import Lease
from lockstep.storage.local import LocalStorage
from lockstep.storage.open import open_storage
from lockstep.storage.remote import RemoteStorage

__all__ = ["Lease", "LocalStorage", "RemoteStorage", "Storage", "open_storage"]
