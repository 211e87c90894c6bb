"""KV memory: who owns which block of the cache. No tensors here, only block numbers."""

from toyserve.kv.contiguous import ContiguousKV
from toyserve.kv.manager import BlockEvent, KVIntegrityError, KVManager
from toyserve.kv.paged import PagedKV
from toyserve.kv.reserved import ReservedKV
from toyserve.kv.swap import SwapSpace

__all__ = [
    "BlockEvent",
    "ContiguousKV",
    "KVIntegrityError",
    "KVManager",
    "PagedKV",
    "ReservedKV",
    "SwapSpace",
]
