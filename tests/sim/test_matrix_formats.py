import ml_dtypes
import numpy as np
import pytest

from cakert.sim.matrix import formats

ALL16 = np.arange(65536, dtype=np.uint16)


def same(got, expected):
    assert ((got == expected) | (np.isnan(got) & np.isnan(expected))).all()


def test_every_16_bit_pattern_is_exact():
    raw = ALL16.view(np.uint8)
    with np.errstate(invalid="ignore"):
        same(formats.decode(raw, "bf16"), ALL16.view(ml_dtypes.bfloat16).astype(np.float64))
        same(formats.decode(raw, "f16"), ALL16.view(np.float16).astype(np.float64))


def test_eight_bit_tables():
    raw = np.arange(256, dtype=np.uint8)
    assert formats.decode(raw, "e4m3")[0x7E] == 448.0
    assert np.isnan(formats.decode(raw, "e4m3")[[0x7F, 0xFF]]).all()
    assert formats.decode(raw, "e4m3")[1] == 2.0**-9
    assert formats.decode(raw, "e5m2")[0x7B] == 57344.0
    assert formats.decode(raw, "e5m2")[0x7C] == np.inf
    assert formats.decode(raw, "s8")[0x80] == -128
    assert formats.decode(raw, "u8")[0x80] == 128


def test_tf32_ignores_the_low_13_bits():
    words = np.array([0x3F801FFF, 0x3F802000], np.uint32)
    assert list(formats.decode(words.view(np.uint8), "tf32")) == [1.0, 1.0 + 2.0**-10]


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0 + 2.0**-24, 0x3F800000),  # a tie, to even
        (1.0 + 3 * 2.0**-24, 0x3F800002),
        (1.0 + 2.0**-24 + 2.0**-50, 0x3F800001),
        (2.0**-149, 1),
        (2.0**-150, 0),
        (1e39, 0x7F800000),
        (float("nan"), 0x7FFFFFFF),
        (-float("nan"), 0x7FFFFFFF),
    ],
)
def test_rounding_to_f32(value, bits):
    with np.errstate(all="ignore"):
        assert int(formats.encode(np.array([value]), "f32")[0]) == bits


def test_unknown_encoding_is_refused():
    with pytest.raises(ValueError, match="bf16"):
        formats.encode(np.zeros(1), "bf16")
