"""The Triton kernels of toyserve: paged attention and the KV write, from interpreter to GPU.

One file per kernel, each with a torch reference, the kernel and its launcher:

- `write_kv`: put this step's keys and values into their slots of the paged cache
- `ragged_attention`: any mixture of prompt chunks and decodes in one launch
- `decode_attention`: one new token per sequence, long contexts cut into splits

`backend` says where the kernels can run and, where they cannot, why not. Importing this package
imports neither torch nor triton: Triton reads `TRITON_INTERPRET` once, when it is first imported,
and that moment belongs to the user.
"""

from importlib import import_module
from typing import Any

# Only names that no module has, so that `toyserve_kernels.write_kv` is always the module.
_HOME = {
    "check_attention": "checks",
    "check_decode_attention": "checks",
    "check_write_kv": "checks",
    "make_partials": "decode_attention",
    "support": "backend",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
