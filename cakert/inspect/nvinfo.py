"""The attributes of ``.nv.info`` sections: codes, and a reader that takes no size on trust.

NVIDIA publishes no layout. Names are those that ``cuobjdump -elf`` prints; codes and fields were
read off its text beside the bytes, for kernels compiled by nvcc 13.0 for sm_75 to sm_120 with one
property changed at a time. tests/inspect/test_agreement.py repeats the comparison.

An attribute is a format byte, a code byte and 16 bits: the value itself, or for `SVAL` the number
of bytes that follow. Attributes begin at multiples of four.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from cakert.inspect.records import Parameter

NVAL, BVAL, HVAL, SVAL = 1, 2, 3, 4  # no value, 8 bits, 16 bits, sized bytes

MAX_THREADS = 0x05  # three words: x, y, z
PARAM_CBANK = 0x0A  # symbol of the bank; 16 bits offset, 16 bits size
REQNTID = 0x10  # three words
FRAME_SIZE = 0x11  # symbol, bytes
MIN_STACK_SIZE = 0x12  # symbol, bytes; all bits set where nvlink cannot tell (cuobjdump: UNKNOWN)
KPARAM_INFO = 0x17  # index; 16 bits ordinal, 16 bits offset; size in bits 18-31 of the last word
CBANK_PARAM_SIZE = 0x19  # 16 bits
MAXREG_COUNT = 0x1B  # 16 bits
REGCOUNT = 0x2F  # symbol, registers
CTA_PER_CLUSTER = 0x3D  # three words
MAX_CLUSTER_RANK = 0x3F  # one word
KPARAM_INFO_V2 = 0x45  # index; 16 bits ordinal, 16 bits offset; 32 bits size (blocks over 4 KiB)
NUM_BARRIERS = 0x4C  # 8 bits
TCGEN05_1CTA_USED, TCGEN05_2CTA_USED = 0x51, 0x52  # no value

UNKNOWN_STACK = 0xFFFFFFFF

_NAMES = {
    MAX_THREADS: "EIATTR_MAX_THREADS",
    PARAM_CBANK: "EIATTR_PARAM_CBANK",
    REQNTID: "EIATTR_REQNTID",
    FRAME_SIZE: "EIATTR_FRAME_SIZE",
    MIN_STACK_SIZE: "EIATTR_MIN_STACK_SIZE",
    KPARAM_INFO: "EIATTR_KPARAM_INFO",
    REGCOUNT: "EIATTR_REGCOUNT",
    CTA_PER_CLUSTER: "EIATTR_CTA_PER_CLUSTER",
    MAX_CLUSTER_RANK: "EIATTR_MAX_CLUSTER_RANK",
    KPARAM_INFO_V2: "EIATTR_KPARAM_INFO_V2",
}

_HEAD = struct.Struct("<BBH")


class Attribute(NamedTuple):
    """One attribute: `value` is the 16 bits of the short formats, `data` the bytes of `SVAL`."""

    format: int
    code: int
    value: int
    data: bytes

    def words(self, count: int) -> tuple[int, ...]:
        """The data as `count` 32-bit words.

        Raises
        ------
        ValueError
            It has another size.
        """
        if self.format != SVAL or len(self.data) != 4 * count:
            name = _NAMES.get(self.code, f"attribute {self.code:#04x}")
            raise ValueError(
                f"{name}: expected {4 * count} bytes, got {len(self.data)} (format {self.format})"
            )
        return struct.unpack(f"<{count}I", self.data)


def read_attributes(section: bytes) -> Iterator[Attribute]:
    """The attributes of one section, in order.

    Raises
    ------
    ValueError
        An attribute has an unknown format, or ends beyond the section.
    """
    offset = 0
    while offset < len(section):
        if offset + _HEAD.size > len(section):
            raise ValueError(f"the section ends inside the attribute at offset {offset}")
        kind, code, value = _HEAD.unpack_from(section, offset)
        start = offset + _HEAD.size
        if kind == SVAL:
            if start + value > len(section):
                raise ValueError(
                    f"attribute {code:#04x} at offset {offset} has {value} bytes, "
                    f"{len(section) - start} are left"
                )
            yield Attribute(kind, code, value, section[start : start + value])
            offset = start + (value + 3) // 4 * 4
        elif kind in (NVAL, BVAL, HVAL):
            yield Attribute(kind, code, value & 0xFF if kind == BVAL else value, b"")
            offset = start
        else:
            raise ValueError(f"attribute {code:#04x} at offset {offset} has unknown format {kind}")


def read_parameter(attribute: Attribute) -> Parameter:
    """The parameter that a `KPARAM_INFO` or `KPARAM_INFO_V2` describes."""
    _, place, last = attribute.words(3)
    size = last >> 18 if attribute.code == KPARAM_INFO else last
    return Parameter(ordinal=place & 0xFFFF, offset=place >> 16, size=size)
