"""What the report knows of an instruction by its mnemonic: the pipe, the bytes, the work."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "PIPES",
    "Access",
    "access_of",
    "job_of",
    "mma_sync_work",
    "packed",
    "pipe_of",
    "takes_slot",
]

PIPES = ("alu", "fma", "xu", "lsu", "tensor", "tma", "branch", "sync", "other")

# The longest prefix of the mnemonic, on dot boundaries, names the pipe; arithmetic depends on the
# type and is told apart in `pipe_of`.
_PREFIXES = {
    "xu": "ex2 lg2 rcp sqrt rsqrt sin cos tanh div",
    "lsu": "ld st ldu atom red shfl ldmatrix stmatrix movmatrix cp.async prefetch prefetchu mapa "
    "tcgen05.ld tcgen05.st multimem st.async red.async",
    "tensor": "mma wmma wgmma.mma_async tcgen05.mma tcgen05.cp tcgen05.shift",
    "tma": "cp.async.bulk cp.reduce.async.bulk prefetch.tensormap st.bulk",
    "branch": "bra brx ret exit call trap brkpt",
    "sync": "bar barrier mbarrier cp.async.mbarrier cp.async.commit_group cp.async.wait_group "
    "cp.async.wait_all cp.async.bulk.commit_group cp.async.bulk.wait_group fence membar vote match "
    "redux elect activemask setmaxnreg nanosleep griddepcontrol clusterlaunchcontrol wgmma tcgen05 "
    "getctarank",
    "alu": "abs neg min max set setp selp slct and or xor not lop3 shf shl shr mov prmt bfe bfi "
    "bfind brev popc clz fns mad24 mul24 mad sad dp2a dp4a szext bmsk cvta isspacep testp copysign "
    "add sub mul addc subc madc cnot rem createpolicy",
    "fma": "fma",
}
_PIPE_BY_PREFIX = {prefix: pipe for pipe, words in _PREFIXES.items() for prefix in words.split()}
_FLOATING = re.compile(r"^(b?f(16|32|64)(x2)?)$")
_ARITHMETIC = ("add", "sub", "mul", "mad")
_TYPE = re.compile(r"^(?:[bsuf]|bf)(8|16|32|64|128)(x2)?$")
_SPACES = {
    "global": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "local": "local",
    "const": "const",
    "param": "param",
    "param::entry": "param",
}
_KINDS = {"ld": "ld", "ldu": "ld", "st": "st", "atom": "atom", "red": "atom"}


def pipe_of(mnemonic: str) -> str:
    """The unit that executes an instruction: one of `PIPES`."""
    parts = mnemonic.split(".")
    if parts[0] == "cvt":
        # Between a float and an integer it is the MUFU's work, within either kind the ALU's.
        kinds = {bool(_FLOATING.match(part)) for part in parts[1:] if re.match(r"^\w*\d", part)}
        return "xu" if len(kinds) == 2 else "alu"
    if parts[0] in _ARITHMETIC and any(_FLOATING.match(part) for part in parts[1:]):
        return "fma"
    for length in range(len(parts), 0, -1):
        pipe = _PIPE_BY_PREFIX.get(".".join(parts[:length]))
        if pipe is not None:
            return pipe
    return "other"


def takes_slot(mnemonic: str) -> bool:
    """Whether an instruction is issued: not those that ptxas all but always does away with.

    Moves, of which nvcc writes as many as of anything else, name registers; addresses are converted
    by nothing; parameters are operands in the constant bank.
    """
    return not mnemonic.startswith(("mov.", "cvta.", "ld.param"))


def packed(mnemonic: str) -> int:
    """Operations a lane of the MUFU or the f32 FMA pipe: 2 where it takes the halves one by one.

    An ex2 of f16x2 or bf16x2 is two operations of the MUFU (SASS of sm_100a). A 16-bit pair is one
    operation of the FMA pipe, an f32x2 is two (see `Rates.fma`).
    """
    pairs = ("f16x2", "bf16x2") if pipe_of(mnemonic) == "xu" else ("f32x2",)
    return 2 if any(part in pairs for part in mnemonic.split(".")) else 1


@dataclass(frozen=True)
class Access:
    """What a lane of a memory instruction moves.

    Attributes
    ----------
    kind
        "ld", "st", "atom", "ldmatrix" or "stmatrix".
    space
        "global", "shared", "local", "const", "param", or "generic".
    nbytes
        Bytes a lane.
    """

    kind: str
    space: str
    nbytes: int


def access_of(mnemonic: str) -> Access | None:
    """The access of a load, store, atomic, ldmatrix or stmatrix; None of anything else."""
    opcode, *parts = mnemonic.split(".")
    if opcode in ("ldmatrix", "stmatrix"):
        # 8 rows of 16 bytes a matrix, over 32 lanes.
        return Access(opcode, "shared", 4 * int(next(p for p in parts if p in _MATRICES)[1:]))
    kind = _KINDS.get(opcode)
    if kind is None or (parts and parts[0] in ("async", "bulk")):
        return None
    types = [match for part in parts if (match := _TYPE.match(part))]
    if not types:
        return None
    nbytes = int(types[-1][1]) // 8 * (2 if types[-1][2] else 1)
    vector = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
    space = next((_SPACES[part] for part in parts if part in _SPACES), "generic")
    return Access(kind, space, nbytes * vector)


_MATRICES = ("x1", "x2", "x4")


def mma_sync_work(mnemonic: str) -> float:
    """FLOP of an mma.sync in 16-bit FLOP: tf32 costs double, 8-bit types half; 0 of others.

    Twice M N K is counted. The ratios are those of the data-sheet peaks.
    """
    parts = mnemonic.split(".")
    shape = next((match for p in parts if (match := re.match(r"^m(\d+)n(\d+)k(\d+)$", p))), None)
    if parts[:2] != ["mma", "sync"] or shape is None:
        return 0
    flops = 2 * int(shape[1]) * int(shape[2]) * int(shape[3])
    if "tf32" in parts:
        return 2 * flops
    return flops / 2 if {"e4m3", "e5m2", "s8", "u8"} & set(parts) else flops


def job_of(mnemonic: str) -> str | None:
    """What a warp that executes the instruction may be there for; None of most instructions."""
    parts = mnemonic.split(".")
    if parts[0] == "ex2":
        return "exp2"
    if pipe_of(mnemonic) == "tensor":
        return "MMA"
    if pipe_of(mnemonic) == "tma" and parts[0] == "cp":
        outgoing = parts[1] == "reduce" or "bulk_group" in parts
        return None if "prefetch" in parts else "bulk stores" if outgoing else "bulk loads"
    if mnemonic.startswith(("tcgen05.ld", "tcgen05.st")):
        return "tensor memory"
    if parts[:2] == ["cp", "async"] and pipe_of(mnemonic) == "lsu":
        return "cp.async"
    access = access_of(mnemonic)
    if access is not None and access.kind == "st" and access.space in ("global", "generic"):
        return "stores"
    return None
