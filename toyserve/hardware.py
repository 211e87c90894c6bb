"""What a cost model has to know of a machine: memory, bandwidth, peak arithmetic, launch time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Bytes per stored number. int4 is weight-only quantisation: two weights in a byte.
DTYPE_BYTES: Mapping[str, float] = MappingProxyType(
    {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
)

# The rate at which a type is multiplied where the machine has no unit for it: narrow weights are
# widened to 16 bits first, and 16 bits to fp32 on a machine that has nothing else.
_FALLBACK = ("fp16", "bf16", "fp32")


def dtype_bytes(dtype: str) -> float:
    """Bytes per number. Raises ValueError that names the known types."""
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype is {dtype!r}: the known ones are {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class HardwareSpec:
    """One device. Peaks are what the vendor prints, dense (without structured sparsity).

    memory_bytes: device memory. peak_flops: FLOP/s by dtype.
    bandwidth: bytes per second between device memory and the arithmetic.
    launch_time: seconds that a step costs whatever is in it (starting the kernels, the host's
    share). pcie_bandwidth: to the host's memory, bytes/s in one direction.
    """

    name: str
    memory_bytes: float
    bandwidth: float
    peak_flops: Mapping[str, float]
    launch_time: float
    pcie_bandwidth: float

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "bandwidth", "pcie_bandwidth"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{self.name}: {name} is {value!r}: it must be above 0")
        if not (math.isfinite(self.launch_time) and self.launch_time >= 0):
            raise ValueError(f"{self.name}: launch_time is {self.launch_time!r}: it must be >= 0")
        for dtype, rate in self.peak_flops.items():
            dtype_bytes(dtype)
            if not (math.isfinite(rate) and rate > 0):
                raise ValueError(f"{self.name}: peak_flops[{dtype!r}] is {rate!r}: it must be > 0")
        if "fp32" not in self.peak_flops:
            raise ValueError(
                f"{self.name}: peak_flops has no 'fp32' rate, which is the last resort"
            )
        object.__setattr__(self, "peak_flops", MappingProxyType(dict(self.peak_flops)))

    def peak_flops_for(self, dtype: str) -> float:
        """FLOP/s for operands of ``dtype``, or of the next wider type that has a unit here."""
        dtype_bytes(dtype)
        return next(self.peak_flops[d] for d in (dtype, *_FALLBACK) if d in self.peak_flops)

    @property
    def has_16_bit(self) -> bool:
        return "fp16" in self.peak_flops or "bf16" in self.peak_flops

    def ridge(self, dtype: str) -> float:
        """FLOPs per byte at which memory and arithmetic take equally long: the roofline's knee."""
        return self.peak_flops_for(dtype) / self.bandwidth


def _tera(**rates: float) -> dict[str, float]:
    return {dtype: rate * 1e12 for dtype, rate in rates.items()}


GB = 1e9

# Datasheet figures; sparse peaks are halved to dense ones, PCIe totals to one direction.
# launch_time is no datasheet's: a round figure for a step of a decoder under captured CUDA graphs
# plus the host's work between two steps. Calibrate it where it matters.
HARDWARE: Mapping[str, HardwareSpec] = MappingProxyType(
    {
        # NVIDIA T4 Tensor Core GPU datasheet: 16 GB GDDR6, 320 GB/s, 8.1 / 65 / 130, PCIe 3.0 x16
        "t4": HardwareSpec(
            "T4", 16 * GB, 320 * GB, _tera(fp32=8.1, fp16=65.0, int8=130.0), 0.8e-3, 16 * GB
        ),
        # NVIDIA L4 Tensor Core GPU datasheet: 24 GB, 300 GB/s, 30.3 / 242* / 485*, PCIe 4.0 x16
        "l4": HardwareSpec(
            "L4",
            24 * GB,
            300 * GB,
            _tera(fp32=30.3, fp16=121.0, bf16=121.0, fp8=242.5, int8=242.5),
            0.6e-3,
            32 * GB,
        ),
        # NVIDIA A100 datasheet, 80 GB SXM: 2,039 GB/s, 19.5 / 312 / 624, PCIe 4.0 x16
        "a100": HardwareSpec(
            "A100-80GB",
            80 * GB,
            2039 * GB,
            _tera(fp32=19.5, fp16=312.0, bf16=312.0, int8=624.0),
            0.5e-3,
            32 * GB,
        ),
        # NVIDIA H100 datasheet, SXM: 80 GB, 3.35 TB/s, 67 / 1,979* / 3,958*, PCIe 5.0 x16
        "h100": HardwareSpec(
            "H100-SXM",
            80 * GB,
            3350 * GB,
            _tera(fp32=67.0, fp16=989.5, bf16=989.5, fp8=1979.0, int8=1979.0),
            0.5e-3,
            64 * GB,
        ),
        # NVIDIA H200 datasheet, SXM: 141 GB, 4.8 TB/s, arithmetic as H100, PCIe 5.0 x16
        "h200": HardwareSpec(
            "H200-SXM",
            141 * GB,
            4800 * GB,
            _tera(fp32=67.0, fp16=989.5, bf16=989.5, fp8=1979.0, int8=1979.0),
            0.5e-3,
            64 * GB,
        ),
        # Not a product: copy bandwidth and fp32 matrix rate as measured with torch on two virtual
        # cores of a current server (Zen 5), memory of a common laptop; "PCIe" is a memory copy.
        "laptop": HardwareSpec(
            "laptop (2-core CPU)", 16 * GB, 43 * GB, _tera(fp32=0.487), 1.0e-3, 43 * GB
        ),
    }
)

_ALIASES = {"a100-80gb": "a100", "h100-sxm": "h100", "h200-sxm": "h200", "cpu": "laptop"}


def get_hardware(name: str | HardwareSpec) -> HardwareSpec:
    """By name, in any case ("h100", "A100-80GB"). Raises ValueError that names the known ones."""
    if isinstance(name, HardwareSpec):
        return name
    key = str(name).strip().lower()
    key = _ALIASES.get(key, key)
    if key not in HARDWARE:
        raise ValueError(f"unknown hardware {name!r}: the known ones are {', '.join(HARDWARE)}")
    return HARDWARE[key]
