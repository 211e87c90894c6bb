"""The tests under `interpreted/` need a process whose Triton interprets, from its first import.

pytest collects this folder together with tests that import torch and transformers, and those may
import triton to compile. So `test_kernels_in_interpreter.py` runs `interpreted/` in a process of
its own, and here it is collected only when the whole process was started to interpret:

    TRITON_INTERPRET=1 pytest tests/kernels/interpreted
"""

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]
