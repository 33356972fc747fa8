"""What is built: the kernel families, their variants and targets, as data.

A variant is one source with one set of macros; it gives one PTX and one cubin for each target.
Standard library only: `build_cubins.py --check --quick` runs on a bare interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass

PORTABLE_TARGETS = ("sm_90", "sm_100a", "sm_103a")
SM90_TARGETS = ("sm_90a",)  # wgmma and setmaxnreg are of this target alone


@dataclass(frozen=True)
class KernelSpec:
    """One kernel of a variant and what it computes; None where a property does not apply."""

    name: str
    R: int | None = None
    D: int | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Variant:
    """One source file with one set of macros.

    Attributes
    ----------
    family
        Group that routes choose by ("portable", "sm90", "sm90_group", "sm90_split").
    stem
        File name before ``.<target>.cubin``.
    source
        Path below the repository root, with forward slashes.
    defines
        Macros as ``NAME=VALUE``, given to nvcc in this order.
    targets
        Exactly the architectures that this source is written for: a kernel is never built for
        another one, where it would be an empty stub or would not assemble.
    kernels
        The entry points that the PTX must hold, no more and no fewer.
    """

    family: str
    stem: str
    source: str
    defines: tuple[str, ...]
    targets: tuple[str, ...]
    kernels: tuple[KernelSpec, ...]


def _attention(
    family: str,
    targets: tuple[str, ...],
    blocks: tuple[int, ...] = (64, 128),
    head_dims: tuple[int, ...] = (64, 96, 128),
) -> list[Variant]:
    """The variants of ``cuda/vsa_<family>.cu``: block sizes, head_dims and every dtype."""
    variants = []
    for block in blocks:
        for head_dim in head_dims:
            for dtype, is_bf16 in (("fp16", 0), ("bf16", 1)):
                suffix = f"r{block}_d{head_dim}_{dtype}"
                kernel = KernelSpec(f"cake_vsa_{family}_{suffix}", block, head_dim, dtype)
                variants.append(
                    Variant(
                        family=family,
                        stem=f"vsa_{family}_{suffix}",
                        source=f"cuda/vsa_{family}.cu",
                        defines=(
                            f"CAKE_BLOCK={block}",
                            f"CAKE_HEAD_DIM={head_dim}",
                            f"CAKE_BF16={is_bf16}",
                        ),
                        targets=targets,
                        kernels=(kernel,),
                    )
                )
    return variants


VARIANTS: tuple[Variant, ...] = (
    *_attention("portable", PORTABLE_TARGETS),
    *_attention("sm90", SM90_TARGETS),
    *_attention("sm90_split", SM90_TARGETS, blocks=(64,)),
    *_attention("sm90_group", SM90_TARGETS, blocks=(64,), head_dims=(128,)),
)
