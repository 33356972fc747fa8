import numpy as np
import pytest
from matrix_fakes import FakeLaunch, blackwell_descriptor, hopper_descriptor, tile_place

from cakert.sim.faults import Fault
from cakert.sim.matrix import descriptors

START = 8192


def decode(word, *, blackwell=False):
    return descriptors.decode(word, blackwell=blackwell, where=None, launch=FakeLaunch())


def check_all(descriptor, rows, k, element_bytes, swizzle, major, lbo, sbo, first_k=0):
    got = descriptor.addresses(rows, k, element_bytes, major)
    for mn in range(rows):
        for depth in range(k):
            place = START + tile_place(
                mn, first_k + depth, element_bytes, swizzle=swizzle, major=major, lbo=lbo, sbo=sbo
            )
            assert got[mn, depth] == place, (mn, depth)


@pytest.mark.parametrize("blackwell", [False, True])
@pytest.mark.parametrize("swizzle", [128, 64, 32])
@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_k_major_swizzled(blackwell, swizzle, element_bytes):
    make = blackwell_descriptor if blackwell else hopper_descriptor
    sbo = 8 * swizzle + 1024  # rows need not be dense
    k = 32 // element_bytes
    for step in range(swizzle // 32):
        # The advance along K inside the swizzle row.
        word = make(START + 32 * step, 16, sbo, swizzle)
        descriptor = decode(word, blackwell=blackwell)
        check_all(descriptor, 24, k, element_bytes, swizzle, "k", 16, sbo, step * k)


@pytest.mark.parametrize("swizzle", [128, 64, 32])
@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_mn_major_swizzled(swizzle, element_bytes):
    lbo, sbo = 16384, 8 * swizzle + 2048
    k = 32 // element_bytes
    descriptor = decode(blackwell_descriptor(START, lbo, sbo, swizzle), blackwell=True)
    rows = 2 * swizzle // element_bytes
    check_all(descriptor, rows, k, element_bytes, swizzle, "mn", lbo, sbo)


@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_without_swizzle(major, element_bytes):
    lbo, sbo = 2048, 128 * 3
    descriptor = decode(hopper_descriptor(START, lbo, sbo, 0))
    rows = 32 if major == "k" else 3 * 16 // element_bytes
    check_all(descriptor, rows, 32 // element_bytes, element_bytes, 0, major, lbo, sbo)


def test_no_swizzle_column_strips_of_gpu_facts():
    # Section 4.4, last row: [R x 8] column strips of 16 R bytes; SBO 128, LBO 16 R.
    rows = 64
    descriptor = decode(hopper_descriptor(START, 16 * rows, 128, 0))
    got = descriptor.addresses(rows, 16, 2, "k")
    assert got[5, 9] == START + 16 * rows + 5 * 16 + 2
    assert got[13, 7] == START + 13 * 16 + 14


@pytest.mark.parametrize("sbo", [512, 4096])
def test_atoms_of_32_bytes(sbo):
    # Rows of 128 bytes; 32-byte chunk j of row r goes to chunk j ^ (r % 4); 4 rows a pattern.
    lbo = 8192
    descriptor = decode(blackwell_descriptor(START, lbo, sbo, "128-32"), blackwell=True)
    got = descriptor.addresses(64, 8, 4, "mn")
    for mn in range(64):
        for k in range(8):
            group, inside = divmod(mn, 32)
            chunk, within = divmod(inside * 4, 32)
            row = k % 4
            place = START + group * lbo + (k // 4) * sbo + row * 128
            assert got[mn, k] == place + (chunk ^ row) * 32 + within


def test_byte_addresses_and_ranges():
    descriptor = decode(hopper_descriptor(START, 16, 1024, 128))
    places = descriptor.byte_addresses(64, 16, 2, "k")
    assert places.shape == (64, 16, 2)
    assert places.flags.c_contiguous
    assert not places.flags.writeable
    assert (places[..., 1] == places[..., 0] + 1).all()
    touched = set(places[16:32].reshape(-1).tolist())
    ranges = descriptor.ranges(64, 16, 2, "k", (16, 32))
    assert {a for start, n in ranges for a in range(start, start + n)} == touched
    assert sum(n for _, n in ranges) == len(touched) == 16 * 32
    dense = decode(hopper_descriptor(START, 8192, 1024, 128))
    assert dense.ranges(64, 16, 2, "mn") == ((START, 2048),)


FIELDS = [
    (False, 1 << 14, "bits 14-15"),
    (False, 2 << 30, "bits 30-31"),
    (False, 1 << 46, "bits 46-48"),
    (False, 1 << 61, "bits 52-61"),
    (False, 3 << 49, "base offset"),
    (True, 1 << 15, "bits 14-15"),
    (True, 1 << 31, "bits 30-31"),
    (True, 1 << 53, "bits 53-60"),
    (True, 1 << 48, "0b001"),
    (True, 1 << 52, "bit 52"),
    (True, 1 << 49, "base offset"),
]


@pytest.mark.parametrize(("blackwell", "extra", "field"), FIELDS)
def test_invalid_fields_are_named(blackwell, extra, field):
    make = blackwell_descriptor if blackwell else hopper_descriptor
    word = make(START, 16, 1024, 128)
    decode(word, blackwell=blackwell)
    with pytest.raises(Fault, match=r"descriptor-invalid") as caught:
        decode(word ^ extra, blackwell=blackwell)
    assert field in str(caught.value)


def test_missing_constant_and_invalid_swizzle_codes():
    good = blackwell_descriptor(START, 16, 1024, 0)
    with pytest.raises(Fault, match="constant 0b001"):
        decode(good & ~(1 << 46), blackwell=True)
    for code in (3, 5, 7):
        with pytest.raises(Fault, match=f"swizzle code {code}"):
            decode(good | code << 61, blackwell=True)


@pytest.mark.parametrize(("swizzle", "pattern"), [(128, 1024), (64, 512), (32, 256)])
def test_tiles_start_on_the_natural_boundary(swizzle, pattern):
    decode(hopper_descriptor(START + pattern, 16, 1024, swizzle))
    decode(hopper_descriptor(START + pattern + swizzle - 16, 16, 1024, swizzle))
    for wrong in (swizzle, pattern // 2, pattern - 16):
        with pytest.raises(Fault, match=f"multiple of {pattern}"):
            decode(hopper_descriptor(START + wrong, 16, 1024, swizzle))
    decode(hopper_descriptor(START + 16, 16, 1024, 0))


def test_atoms_of_32_bytes_repeat_after_512():
    decode(blackwell_descriptor(START + 512, 16, 512, "128-32"), blackwell=True)
    with pytest.raises(Fault, match="multiple of 512"):
        decode(blackwell_descriptor(START + 256, 16, 512, "128-32"), blackwell=True)


def check(descriptor, *shape, size=232448):
    launch = FakeLaunch()
    descriptors.check(descriptor, *shape, size=size, where=None, launch=launch)


def test_operands_stay_in_their_row_and_in_shared_memory():
    tile = decode(hopper_descriptor(START, 16, 1024, 128))
    check(tile, 64, 16, 2, "k", size=START + 8192)
    with pytest.raises(Fault, match="beyond the end"):
        check(tile, 64, 16, 2, "k", size=START + 8191 - 96)
    late = decode(hopper_descriptor(START + 112, 16, 1024, 128))
    with pytest.raises(Fault, match="leaves that row"):
        check(late, 64, 16, 2, "k")
    half = decode(hopper_descriptor(START + 64, 8192, 1024, 128))
    check(half, 32, 16, 2, "mn")
    with pytest.raises(Fault, match="MN-major"):
        check(half, 40, 16, 2, "mn")
    atoms = decode(blackwell_descriptor(START, 16, 512, "128-32"), blackwell=True)
    with pytest.raises(Fault, match="32-byte atoms"):
        check(atoms, 32, 16, 2, "mn")


def test_ignored_faults_are_noted_and_decoding_goes_on():
    launch = FakeLaunch()
    launch.ignore = {"descriptor-invalid"}
    word = hopper_descriptor(START, 16, 1024, 128) | 1 << 14
    got = descriptors.decode(word, blackwell=False, where=None, launch=launch)
    assert (got.start, got.lbo, got.sbo, got.swizzle_bits) == (START, 16, 1024, 3)
    assert [name for name, _ in launch.notes] == ["descriptor-invalid"]
    assert np.all(got.addresses(8, 16, 2, "k") >= START)
