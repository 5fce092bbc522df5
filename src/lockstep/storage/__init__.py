"""A directory on any filesystem, and how something in it comes to exist in one atomic step.

What a checkpoint is made of, and which ones there are, is not known here.
"""

from lockstep.storage.base import Storage
from lockstep.storage.local import LocalStorage
from lockstep.storage.open import open_storage
from lockstep.storage.remote import RemoteStorage

__all__ = ["LocalStorage", "RemoteStorage", "Storage", "open_storage"]
