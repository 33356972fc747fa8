"""Kernels that Triton compiles for the comparison of cubins; imported only where Triton is."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


@triton.jit
def matmul(a, b, c, K, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        total += tl.dot(tl.load(a + i * K + (k + j)), tl.load(b + (k + i) * BLOCK + j))
    tl.store(c + i * BLOCK + j, total)


SIGNATURES = {
    add: {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"},
    matmul: {"a": "*fp16", "b": "*fp16", "c": "*fp32", "K": "i32", "BLOCK": "constexpr"},
}


def cubins(capability: int) -> dict[str, bytes]:
    """By kernel; Triton's own ptxas assembles them, no GPU is needed."""
    target = GPUTarget("cuda", capability, 32)
    found = {}
    for function, signature in SIGNATURES.items():
        source = ASTSource(function, signature, constexprs={"BLOCK": 64})
        found[function.__name__] = triton.compile(source, target=target).asm["cubin"]
    return found
