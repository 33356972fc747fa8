"""A folder of cubins as the package has it, made of tiny cubins that hold no code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tiny_cubin import tiny_cubin

THREADS = 128
PARAM_BYTES = 160  # sizeof(CakeVsaParams)
MAP_BYTES = 128  # sizeof(CakeTensorMap)


def write_store(folder: Path, targets: Sequence[str]) -> Path:
    """Write cubins and manifest of all variants for `targets`; where sm_90 is one, of all."""
    entries = []
    variants = [
        (block, head_dim, dtype)
        for block in (64, 128)
        for head_dim in (64, 96, 128)
        for dtype in ("fp16", "bf16")
    ]
    folder.mkdir(parents=True, exist_ok=True)
    families = [("portable", target, (PARAM_BYTES,)) for target in targets]
    if "sm_90" in targets:
        with_maps = (PARAM_BYTES, *[MAP_BYTES] * 4)
        hopper = ("sm90", "sm90_group", "sm90_split")
        families += [(family, "sm_90a", with_maps) for family in hopper]
    for family, target, sizes in families:
        for block, head_dim, dtype in variants:
            if family == "sm90_group" and (block, head_dim) != (64, 128):
                continue
            if family == "sm90_split" and block != 64:
                continue
            variant = f"r{block}_d{head_dim}_{dtype}"
            name = f"cake_vsa_{family}_{variant}"
            image = tiny_cubin({name: sizes}, target=target, max_threads=THREADS)
            file = f"vsa_{family}_{variant}.{target}.cubin"
            (folder / file).write_bytes(image)
            kernel = {
                "name": name,
                "R": block,
                "D": head_dim,
                "dtype": dtype,
                "threads": THREADS,
                "shared_bytes": 512 * head_dim + block,
            }
            unused = ("registers", "static_shared_bytes", "stack_bytes", "spill_loads")
            kernel |= dict.fromkeys((*unused, "spill_stores"), 0)
            entries.append(
                {
                    "file": file,
                    "sha256": hashlib.sha256(image).hexdigest(),
                    "ptx_sha256": "",
                    "family": family,
                    "target": target,
                    "kernels": [kernel],
                }
            )
    toolkit = {"release": "13.0", "version": "13.0.88", "build": "cuda_13.0"}
    manifest = {"format": 1, "toolkit": toolkit, "entries": entries}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
