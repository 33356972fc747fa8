"""Compiles one kernel of `triton_kernels` to PTX, in a process of its own and without a GPU.

triton_compile.py TRITON_FOLDER KERNEL CAPABILITY RECORD.json
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

folder, kernel, capability, record = sys.argv[1:]
sys.path.insert(0, folder)
os.environ["TRITON_BACKENDS_IN_TREE"] = "1"

import triton  # noqa: E402
import triton_kernels  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

assert Path(triton.__file__).is_relative_to(folder), triton.__file__

# Function, types of its parameters, block sizes, number of warps, software-pipeline stages. A type
# with "/16" promises a multiple of 16 (bytes of an address, the value of an integer): vectorised
# loads and cp.async depend on it.
POINTER, LENGTH = "*bf16/16", "i32/16"
MATMUL = (triton_kernels.matmul, (POINTER,) * 3 + (LENGTH,) * 3)
KERNELS = {
    # 128-row tiles become tcgen05.mma or wgmma, in 32-row tiles mma.sync remains.
    "matmul": (*MATMUL, {"BM": 128, "BN": 64, "BK": 64}, 4, 3),
    "matmul_small": (*MATMUL, {"BM": 32, "BN": 32, "BK": 32}, 2, 2),
    "attention": (
        triton_kernels.attention,
        (POINTER,) * 4 + ("i32", "i32", "fp32"),
        {"BM": 128, "BN": 64, "D": 64},
        4,
        2,
    ),
}

function, types, constants, warps, stages = KERNELS[kernel]
signature = {
    name: kind.removesuffix("/16") for name, kind in zip(function.arg_names, types, strict=False)
}
signature |= dict.fromkeys(constants, "constexpr")
aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types) if "/16" in kind}
compiled = triton.compile(
    ASTSource(function, signature, constexprs=constants, attrs=aligned),
    target=GPUTarget("cuda", int(capability), 32),
    options={"num_warps": warps, "num_stages": stages},
)
ptx = compiled.asm["ptx"]
entry = ptx[ptx.index(".entry") : ptx.index(".reqntid")]
Path(f"{record}.{os.getpid()}").write_text(
    json.dumps(
        {
            "ptx": ptx,
            "name": compiled.metadata.name,
            # Warp specialisation adds warps to those asked for: the PTX has the last word.
            "threads": int(re.search(r"\.reqntid (\d+)", ptx)[1]),
            "shared_bytes": compiled.metadata.shared,
            "hidden_pointers": entry.count(".param ") - len(types),
        }
    )
)
Path(f"{record}.{os.getpid()}").replace(record)
