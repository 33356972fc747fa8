"""Kernels in Triton's language; only `triton_compile.py` imports this, with Triton on sys.path."""

import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, rows, columns, depth, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = a @ b, row-major bfloat16, accumulated in float32; ragged edges are masked."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(
            a + m[:, None] * depth + k[None, :],
            mask=(m[:, None] < rows) & (k[None, :] < depth),
            other=0.0,
        )
        right = tl.load(
            b + k[:, None] * columns + n[None, :],
            mask=(k[:, None] < depth) & (n[None, :] < columns),
            other=0.0,
        )
        total = tl.dot(left, right, total)
    tl.store(
        c + m[:, None] * columns + n[None, :],
        total.to(tl.bfloat16),
        mask=(m[:, None] < rows) & (n[None, :] < columns),
    )


@triton.jit
def attention(
    q, k, v, out, tokens, keys, scale_log2, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """Dense attention of one head, (tokens, D) bfloat16, by the online softmax; two products."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    queries = tl.load(q + row[:, None] * D + d[None, :], mask=row[:, None] < tokens, other=0.0)
    highest = tl.full((BM,), -float("inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in range(0, keys, BN):
        key = start + tl.arange(0, BN)
        valid = key[:, None] < keys
        right = tl.load(k + key[:, None] * D + d[None, :], mask=valid, other=0.0)
        score = tl.dot(queries, tl.trans(right)) * scale_log2
        score = tl.where(key[None, :] < keys, score, -float("inf"))
        above = tl.maximum(highest, tl.max(score, 1))
        probability = tl.exp2(score - above[:, None])
        shrink = tl.exp2(highest - above)
        weight = weight * shrink + tl.sum(probability, 1)
        values = tl.load(v + key[:, None] * D + d[None, :], mask=valid, other=0.0)
        total = tl.dot(probability.to(tl.bfloat16), values, total * shrink[:, None])
        highest = above
    result = (total / weight[:, None]).to(tl.bfloat16)
    tl.store(out + row[:, None] * D + d[None, :], result, mask=row[:, None] < tokens)
