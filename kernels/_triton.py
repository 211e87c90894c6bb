"""`triton` and `tl` for the kernel files, or stand-ins where Triton has no build (macOS, Windows).

With the stand-ins a kernel file still imports, so that its torch reference and its text can be
used; a launcher refuses to run there (see `backend.require`).
"""

from collections.abc import Callable
from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:

    class _Absent:
        constexpr = int

        @staticmethod
        def jit(fn: Callable | None = None, **_options: Any) -> Callable:
            return fn if fn is not None else (lambda kernel: kernel)

    triton = tl = _Absent()

__all__ = ["tl", "triton"]
