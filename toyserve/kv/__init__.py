"""KV memory: who owns which block of the cache. No tensors here, only block numbers."""

from toyserve.kv.manager import BlockEvent, KVIntegrityError, KVManager
from toyserve.kv.paged import PagedKV
from toyserve.kv.reserved import ReservedKV

__all__ = ["BlockEvent", "KVIntegrityError", "KVManager", "PagedKV", "ReservedKV"]
