"""Which PTX runs on which simulated GPU (PTX ISA 11.1.2, ``.target``), and what a launch may ask.

Limits are those of compute capabilities 9.0, 10.0 and 10.3, which agree (CUDA Programming Guide,
"Compute Capabilities").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "ARCHITECTURES",
    "MAX_BLOCK",
    "MAX_CLUSTER_CTAS",
    "MAX_GRID",
    "MAX_SHARED_BYTES",
    "MAX_THREADS",
    "Architecture",
    "architecture",
    "check_target",
]

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_SHARED_BYTES = 227 * 1024
"""Static and dynamic shared memory of a CTA; 1 KiB of an SM's 228 is the system's for each CTA."""
MAX_CLUSTER_CTAS = 16
"""Non-portable sizes included."""


@dataclass(frozen=True)
class Architecture:
    """A GPU that can be simulated.

    Attributes
    ----------
    name
        As in ``.target``: "sm_100a".
    capability
        Compute capability.
    sms
        Streaming multiprocessors of the part that people have: H200, B200, B300.
    """

    name: str
    capability: tuple[int, int]
    sms: int


ARCHITECTURES = {
    "sm_90a": Architecture("sm_90a", (9, 0), 132),
    "sm_100a": Architecture("sm_100a", (10, 0), 148),
    "sm_103a": Architecture("sm_103a", (10, 3), 148),
}


def architecture(name: object) -> Architecture:
    """The architecture of a name.

    Raises
    ------
    ValueError
        Not one that is simulated.
    """
    found = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"arch must be one of {', '.join(ARCHITECTURES)}, got {name!r}")
    return found


def check_target(target: str, arch: Architecture) -> None:
    """Refuse PTX that the GPU could not be given.

    A plain target runs on every later GPU, an ``a`` target on exactly one, an ``f`` target on the
    later members of its family.

    Raises
    ------
    ValueError
        ``target`` is none that we know, or does not run on ``arch``.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", target)
    if match is None:
        raise ValueError(f".target {target} is not of the form sm_90, sm_90a or sm_100f")
    major, minor, suffix = int(match[1]), int(match[2]), match[3]
    if suffix == "a":
        fits, rule = target == arch.name, f"runs on {target} only"
    elif suffix == "f":
        fits = arch.capability[0] == major and arch.capability >= (major, minor)
        rule = (
            f"runs on GPUs of its family, compute capability {major}.{minor} or a later {major}.x"
        )
    else:
        fits = arch.capability >= (major, minor)
        rule = f"needs compute capability {major}.{minor} or newer"
    if not fits:
        raise ValueError(f"PTX of .target {target} {rule}; this is a simulated {arch.name}")
