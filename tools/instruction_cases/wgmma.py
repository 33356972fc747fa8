"""wgmma: operand layouts, descriptors, accumulators, with integers, so that every sum is exact."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from instruction_cases.model import BITS, Bytes, Case, segments_of
from instruction_cases.text import FILL, copy_words, kernel

__all__ = ["cases"]

BITS_OF = {"128B": 3, "64B": 2, "32B": 1, "none": 0}
CODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
NUMBERS = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
           "tf32": np.dtype(np.float32), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
           "e5m2": np.dtype(ml_dtypes.float8_e5m2)}  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """One operand in shared memory: `rows` of M or N by `depth` of K.

    Attributes
    ----------
    advance
        Bytes from the start of the tile to the operand, inside its swizzle row (K-major).
    """

    element: str
    rows: int
    depth: int
    major: str
    swizzle: str
    advance: int = 0

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return NUMBERS[self.element].itemsize

    @property
    def strides(self) -> tuple[int, int]:
        """LBO and SBO of a dense tile, with a gap of its own in each, to tell them apart."""
        width = 16 << BITS_OF[self.swizzle]
        if self.major == "k":
            step = 8 * width
            return (self.rows // 8 * 128 + 128, 128) if self.swizzle == "none" else (16, step)
        groups = -(-self.rows * self.size // width)
        if self.swizzle == "none":
            return groups * 128 + 128, 128  # LBO between steps of 8 in K, SBO between groups
        return 8 * width * 2, 8 * width  # a group holds the two steps

    def addresses(self, start: int) -> np.ndarray:
        """Byte address of each element, (rows, depth)."""
        bits, (lbo, sbo) = BITS_OF[self.swizzle], self.strides
        width, size = 16 << bits, self.size
        mn, k = np.arange(self.rows)[:, None], np.arange(self.depth)[None, :]
        if self.major == "k":
            offset = mn % 8 * width + mn // 8 * sbo
            if bits:
                offset = offset + k * size
            else:
                offset = offset + k * size // 16 * lbo + k * size % 16
        else:
            group, inside = mn // (width // size), mn % (width // size)
            across, along = (lbo, sbo) if bits else (sbo, lbo)
            offset = inside * size + group * across + k % 8 * width + k // 8 * along
        linear = start + self.advance + offset
        return linear ^ (((linear >> 7) & ((1 << bits) - 1)) << 4)

    def descriptor(self, start: int) -> int:
        """All but the address of shared memory, which the kernel adds."""
        lbo, sbo = self.strides
        word = (start + self.advance) >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32
        return word | CODES[self.swizzle] << 62

    def write(self, image: Bytes, start: int, values: np.ndarray) -> None:
        """Put (rows, depth) values into the image of shared memory."""
        places = self.addresses(start)[..., None] + np.arange(self.size)
        raw = np.ascontiguousarray(values.astype(NUMBERS[self.element])).view(np.uint8)
        image[places] = raw.reshape(places.shape)


@dataclass(frozen=True)
class Form:
    """One instruction; `a` is None where A comes from registers."""

    n: int
    element: str
    result: str
    a: Operand | None
    b: Operand
    scale_d: int = 1
    sign_a: int = 1
    sign_b: int = 1

    @property
    def depth(self) -> int:
        """K of the instruction."""
        return 32 // NUMBERS[self.element].itemsize

    @property
    def name(self) -> str:
        """For the table."""

        def of(operand: Operand) -> str:
            advance = f"+{operand.advance}" if operand.advance else ""
            return f"{operand.major}-{operand.swizzle}{advance}"

        a = of(self.a) if self.a else "registers"
        signs = f"{'+-'[self.sign_a < 0]}{'+-'[self.sign_b < 0]}"
        return (
            f"wgmma n{self.n} {self.element} {self.result} a={a} b={of(self.b)} "
            f"d{self.scale_d} {signs}"
        )


A_START, B_START = 0, 32768


def _text(form: Form, nbytes: int) -> str:
    """Input: the image of shared memory, C as registers, A as registers."""
    num_d = form.n // (2 if form.result == "f32" else 4)
    shape = f"m64n{form.n}k{form.depth}.{form.result}.{form.element}.{form.element}"
    body = f".reg .b32 %c<{num_d}>;\n"
    body += copy_words("fill", "shared %r1", "global %d1", str(nbytes))
    body += (
        "fence.proxy.async.shared::cta;\nbar.sync 0;\nld.param.u64 %d10, [p_a];\n"
        "ld.param.u64 %d11, [p_b];\nld.param.u32 %r5, [p_scale];\nsetp.ne.u32 %p1, %r5, 0;\n"
        "shr.u32 %r3, %r1, 4;\ncvt.u64.u32 %d3, %r3;\nadd.u64 %d10, %d10, %d3;\n"
        "add.u64 %d11, %d11, %d3;\nshl.b32 %r3, %r0, 2;\ncvt.u64.u32 %d3, %r3;\n"
        "add.u64 %d4, %d1, %d3;\nadd.u64 %d5, %d0, %d3;\n"
    )
    body += "".join(f"ld.global.b32 %c{i}, [%d4+{nbytes + 512 * i}];\n" for i in range(num_d))
    base = nbytes + 512 * num_d
    body += "".join(f"ld.global.b32 %r{10 + i}, [%d4+{base + 512 * i}];\n" for i in range(4))
    registers = "{" + ", ".join(f"%c{i}" for i in range(num_d)) + "}"
    a = "%d10" if form.a else "{%r10, %r11, %r12, %r13}"
    trans = ""
    if NUMBERS[form.element].itemsize == 2:
        trans = f", {int(form.a.major == 'mn')}" if form.a else ""
        trans += f", {int(form.b.major == 'mn')}"
    body += (
        "wgmma.fence.sync.aligned;\n"
        f"wgmma.mma_async.sync.aligned.{shape} {registers}, {a}, %d11, %p1, "
        f"{form.sign_a}, {form.sign_b}{trans};\n"
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
    )
    body += "".join(f"st.global.b32 [%d5+{512 * i}], %c{i};\n" for i in range(num_d))
    return kernel(body, params=".param .u64 p_a, .param .u64 p_b, .param .u32 p_scale")


def _case(form: Form) -> Case:
    rng = np.random.default_rng(form.n + len(form.name))
    image = np.zeros(2 * B_START + 256, np.uint8)
    used = 0
    for operand, start in ((form.a, A_START), (form.b, B_START)):
        if operand is not None:
            values = rng.integers(-2, 3, (operand.rows, operand.depth))
            operand.write(image, start, values)
            used = int(operand.addresses(start).max()) + 16
    used = -(-used // 16) * 16
    if form.a is None:  # nothing lies before B
        image = image[B_START:]
        used -= B_START
    per_word = 1 if form.result == "f32" else 2
    num_d = form.n // (2 if form.result == "f32" else 4)
    accumulator = np.float32 if form.result == "f32" else np.float16
    c = rng.integers(-9, 10, num_d * 128 * per_word).astype(accumulator).view(np.uint8)
    words = 4 // NUMBERS[form.element].itemsize
    a = rng.integers(-2, 3, 4 * 128 * words).astype(NUMBERS[form.element]).view(np.uint8)
    b_start = B_START if form.a else 0
    return Case(
        form.name, _text(form, used), np.concatenate([image[:used], c, a]),
        np.full(512 * num_d, FILL & 255, np.uint8),
        segments_of([("D", 512 * num_d // (4 // per_word), 4 // per_word, BITS)]),
        (np.uint64(form.a.descriptor(A_START) if form.a else 0),
         np.uint64(form.b.descriptor(b_start)), np.uint32(form.scale_d)),
        shared_bytes=used + 4096,  # a descriptor that is read otherwise stays inside
    )  # fmt: skip


def cases() -> list[Case]:
    """SS and RS with every swizzle and major; then widths, steps along K, other types."""
    turns = itertools.cycle([(1, 1, 1), (0, 1, 1), (1, -1, 1), (1, 1, -1), (1, -1, -1), (0, -1, 1)])
    elements = itertools.cycle(("bf16", "f16", "f16", "bf16", "bf16"))
    forms = []
    for swizzle, a_major, b_major in itertools.product(BITS_OF, ("k", "mn"), ("k", "mn")):
        element = next(elements)
        a = Operand(element, 64, 16, a_major, swizzle)
        forms.append(
            Form(64, element, "f32", a, Operand(element, 64, 16, b_major, swizzle), *next(turns))
        )
    for swizzle, b_major in itertools.product(BITS_OF, ("k", "mn")):
        element = next(elements)
        b = Operand(element, 64, 16, b_major, swizzle)
        forms.append(Form(64, element, "f32", None, b, *next(turns)))
    for n, swizzle, b_major in (
        (8, "128B", "k"), (24, "64B", "k"), (128, "128B", "mn"), (256, "128B", "k"),
        (128, "none", "mn"), (256, "64B", "mn"), (8, "none", "mn"), (16, "32B", "mn"),
        (24, "32B", "mn"), (24, "128B", "mn"), (8, "64B", "mn"), (24, "none", "k"),
    ):  # fmt: skip
        element = next(elements)
        a = Operand(element, 64, 16, "k", "128B")
        forms.append(
            Form(n, element, "f32", a, Operand(element, n, 16, b_major, swizzle), *next(turns))
        )
    for swizzle, advance in (("128B", 32), ("128B", 64), ("128B", 96), ("64B", 32)):
        a = Operand("bf16", 64, 16, "k", swizzle, advance)
        forms.append(Form(64, "bf16", "f32", a, Operand("bf16", 64, 16, "k", swizzle, advance)))
    for element, result, swizzle in (
        ("tf32", "f32", "128B"), ("e4m3", "f32", "128B"), ("e5m2", "f32", "64B"),
        ("e4m3", "f16", "32B"), ("f16", "f16", "128B"), ("tf32", "f32", "none"),
    ):  # fmt: skip
        depth = 32 // NUMBERS[element].itemsize
        for source in ("shared", "registers"):
            a = Operand(element, 64, depth, "k", swizzle) if source == "shared" else None
            b = Operand(element, 64, depth, "k", swizzle)
            forms.append(Form(64, element, result, a, b, *next(turns)))
    return [_case(form) for form in forms]
