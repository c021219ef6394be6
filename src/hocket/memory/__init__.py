"""Arrays in device memory: the driver that moves them, and the pointer cache.

An array that exports ``__cuda_array_interface__``, or DLPack on a CUDA device, is used in place by libraries that
support it. For all other libraries it is copied to the host, and back after the operation. The driver is asked once,
not at every call, which allocation an address belongs to (Awan et al., arXiv 1810.11112;
native/bind/pointer_cache.hpp describes when an answer may be used again).
"""

from hocket.memory.pointer_cache import MemoryDriver, PointerCacheCounters, counters, forget, use_driver

__all__ = ["MemoryDriver", "PointerCacheCounters", "counters", "forget", "use_driver"]
