"""What is known of device models by their names."""

from __future__ import annotations

import re

from engine.model.specs import PoolSpec

GIB = 1024
MEMORY_MIB: dict[str, int] = {
    "A2": 16 * GIB, "A10": 24 * GIB, "A10G": 24 * GIB, "A16": 16 * GIB, "A30": 24 * GIB, "A40": 48 * GIB,
    "A100": 40 * GIB, "A800": 40 * GIB, "A6000": 48 * GIB, "B200": 180 * GIB, "GB200": 186 * GIB, "GH200": 96 * GIB,
    "H20": 96 * GIB, "H100": 80 * GIB, "H200": 141 * GIB, "H800": 80 * GIB, "K80": 12 * GIB, "L4": 24 * GIB,
    "L40": 48 * GIB, "L40S": 48 * GIB, "MI100": 32 * GIB, "MI210": 64 * GIB, "MI250": 128 * GIB, "MI250X": 128 * GIB,
    "MI300X": 192 * GIB, "P4": 8 * GIB, "P40": 24 * GIB, "P100": 12 * GIB, "T4": 16 * GIB, "V100": 16 * GIB,
    "V100M16": 16 * GIB, "V100M32": 32 * GIB,
}  # fmt: skip
"""Memory of one device by model, where the name does not say it; of those sold with several sizes, the smallest."""
_SIZE_IN_NAME = re.compile(r"(?<![0-9A-Z])([0-9]{1,3})GI?B?(?![0-9A-Z])")


def device_memory_mib(pool: PoolSpec) -> int:
    """Memory of one of the pool's devices: as the pool says, as the model's name says (`A100-80GB`), or as is known of
    the model. 0 where none of them tells."""
    return pool.gpu_memory_mib or memory_by_name(pool.gpu_model)


def memory_by_name(model: str) -> int:
    """Memory of one device by what its model is called; 0 where that tells nothing."""
    name = model.upper()
    size = _SIZE_IN_NAME.search(name)
    if size:
        return int(size[1]) * GIB
    return next((MEMORY_MIB[word] for word in re.split(r"[^A-Z0-9]+", name) if word in MEMORY_MIB), 0)
