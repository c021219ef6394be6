"""Arrays in device memory: which driver moves them, and what the pointer cache knows.

An array that exports ``__cuda_array_interface__``, or DLPack on a CUDA device, is used where it is by libraries that
can, and copied to the host for all others, and back after the operation. Which allocation an address belongs to is
asked of the driver once, not at every call (Awan et al., arXiv 1810.11112; native/bind/pointer_cache.hpp says when an
answer may be used again).
"""

from hocket.memory.pointer_cache import MemoryDriver, PointerCacheCounters, counters, forget, use_driver

__all__ = ["MemoryDriver", "PointerCacheCounters", "counters", "forget", "use_driver"]
