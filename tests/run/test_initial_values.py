"""Values of arguments: from a seed, from files, as the bytes that a kernel gets."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile

import ml_dtypes
import numpy as np
import pytest

from cakert.cli import initial_values
from cakert.cli.argument_specs import DTYPES, FLOATS, parse
from cakert.cli.initial_values import make_array, make_bytes, make_scalar
from cakert.cli.numpy_files import open_arrays

INTEGERS = [name for name in DTYPES if name not in FLOATS and name != "bool"]


def draw(text: str, seed: int = 0, number: int = 0) -> np.ndarray:
    array = make_array(parse(text), seed, number)
    assert array.dtype == DTYPES[parse(text).dtype]
    assert array.shape == parse(text).shape
    return array


@pytest.mark.parametrize("dtype", DTYPES)
def test_words_and_numbers(dtype):
    assert not draw(f"{dtype}[3x5]=zeros").any()
    assert (draw(f"{dtype}[3x5]=ones") == 1).all()
    assert (draw(f"{dtype}[2]=iota") == np.array([0, 1])).all()
    assert (draw(f"{dtype}[2x2]=1") == 1).all()
    if dtype != "bool":
        assert (
            draw(f"{dtype}[3x5]=iota").astype(int).tolist() == np.arange(15).reshape(3, 5).tolist()
        )
    if dtype in FLOATS:
        assert np.isnan(draw(f"{dtype}[7]=nan").astype(np.float64)).all()
        assert (draw(f"{dtype}[7]=-inf").astype(np.float64) == -np.inf).all()


@pytest.mark.parametrize(
    ("fits", "beyond"),
    [("bool[2]", "bool[3]"), ("i8[128]", "i8[129]"), ("u8[16x16]", "u8[257]"),
     ("i16[32768]", "i16[32769]"), ("f16[65520]", "f16[65521]")],
)  # fmt: skip
def test_iota_stops_at_the_type(fits, beyond):
    last = draw(f"{fits}=iota").reshape(-1)[-1]
    assert float(last) == pytest.approx(parse(f"{fits}=iota").nbytes / last.itemsize - 1, rel=1e-3)
    with pytest.raises(ValueError, match="the last number of iota"):
        draw(f"{beyond}=iota")


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_floats(dtype, rng):
    seed = int(rng.integers(1 << 30))
    values = draw(f"{dtype}[100x200]=rand", seed).astype(np.float64)
    assert 0 <= values.min() < 0.01
    assert 0.99 < values.max() < 1  # 16-bit types too: nothing rounds up to 1
    assert values.mean() == pytest.approx(0.5, abs=0.02)
    assert values.std() == pytest.approx(12**-0.5, abs=0.02)
    values = draw(f"{dtype}[20000]=rand:-3:5", seed).astype(np.float64)
    assert -3 <= values.min() < -2.9
    assert 4.9 < values.max() <= 5


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_floats_are_drawn_in_parts(dtype, monkeypatch, rng):
    seed = int(rng.integers(1000))
    whole = draw(f"{dtype}[70x3]=rand:-1:3", seed)
    monkeypatch.setattr(initial_values, "_PART", int(rng.integers(1, 100)))
    assert draw(f"{dtype}[70x3]=rand:-1:3", seed).tobytes() == whole.tobytes()


def test_a_large_array_does_not_take_a_multiple_of_itself():
    tracemalloc.start()
    try:
        array = draw("f16[8000000]=rand")
        assert tracemalloc.get_traced_memory()[1] < 3 * array.nbytes + 3 * 8 * initial_values._PART
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_floats(dtype, rng):
    values = draw(f"{dtype}[20000]=randn", int(rng.integers(1 << 30))).astype(np.float64)
    assert values.mean() == pytest.approx(0, abs=0.05)
    assert values.std() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_uniform_integers(dtype, rng):
    info, seed = np.iinfo(DTYPES[dtype]), int(rng.integers(1 << 30))
    values = draw(f"{dtype}[4096]=rand", seed).astype(np.float64)
    middle, span = (float(info.min) + float(info.max)) / 2, float(info.max) - float(info.min)
    assert values.mean() == pytest.approx(middle, abs=0.04 * span)
    assert values.max() - values.min() > 0.95 * span
    assert set(draw(f"{dtype}[999]=rand:3:7", seed).tolist()) == {3, 4, 5, 6}
    whole = draw(f"{dtype}[4096]=rand:{info.min}:{info.max + 1}", seed).astype(np.float64)
    assert whole.max() - whole.min() > 0.95 * span


def test_uniform_bool(rng):
    values = draw("bool[1000]=rand", int(rng.integers(1 << 30)))
    assert 400 < values.sum() < 600
    assert set(values.view(np.uint8).tolist()) == {0, 1}


def test_values_depend_on_seed_and_place(rng):
    seed = int(rng.integers(1 << 30))
    one = draw("f32[64]=rand", seed, 3)
    assert (one == draw("f32[64]=rand", seed, 3)).all()
    assert (one != draw("f32[64]=rand", seed, 4)).any()
    assert (one != draw("f32[64]=rand", seed + 1, 3)).any()


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("i8=-3", b"\xfd"),
        ("u16=0x1234", b"\x34\x12"),
        ("i32=-1", b"\xff" * 4),
        ("u64=18446744073709551615", b"\xff" * 8),
        ("bool=true", b"\x01"),
        ("f16=1.5", struct.pack("<e", 1.5)),
        ("f32=0.1", struct.pack("<f", 0.1)),
        ("f64=0.1", struct.pack("<d", 0.1)),
        ("f32=-inf", struct.pack("<f", float("-inf"))),
        ("bf16=1.005", b"\x81\x3f"),
    ],
)
def test_bytes_of_scalars(text, data):
    scalar = make_scalar(parse(text))
    assert isinstance(scalar, np.generic)
    assert scalar.tobytes() == data


# --- files ----------------------------------------------------------------------------------------


def save(folder, name, *arrays, **named):
    path = folder / name
    np.savez(path, *arrays, **named) if name.endswith("z") else np.save(path, *arrays)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_from_files(dtype, tmp_path, rng):
    values = rng.integers(0, 2, (4, 6)).astype(DTYPES[dtype])
    spec = f"{dtype}[4x6]=@"
    for stored in (values, np.asfortranarray(values)):
        path = save(tmp_path, "x.npy", stored)
        assert (draw(f"{spec}{path}") == values).all()
        path = save(tmp_path, "x.npz", y=stored, z=values[:2])
        back = draw(f"{spec}{path}:y")
        assert (back == values).all()
        assert back.flags.c_contiguous
    if dtype not in ("bf16", "bool", "i8", "u8"):
        path = save(tmp_path, "x.npy", values.astype(DTYPES[dtype].newbyteorder(">")))
        assert (draw(f"{spec}{path}") == values).all()


def test_compressed_npz(tmp_path, rng):
    values = rng.standard_normal(500)
    np.savez_compressed(tmp_path / "x.npz", v=values)
    assert (draw(f"f64[500]=@{tmp_path / 'x.npz'}:v") == values).all()


def test_files_that_hold_something_else(tmp_path, rng):
    values = rng.standard_normal((4, 6)).astype(np.float32)
    npy, npz = save(tmp_path, "x.npy", values), save(tmp_path, "x.npz", y=values)
    raw = save(tmp_path, "v.npy", np.zeros(3, "V3"))
    objects = tmp_path / "o.npy"
    np.save(objects, np.array([{}, []], object), allow_pickle=True)
    rows = np.save(tmp_path / "r.npy", np.zeros(3, [("a", "i4")])) or tmp_path / "r.npy"
    for text, reason in [
        (f"f32[24]=@{npy}", r"expected f32\[24\], the file holds f32\[4x6\]"),
        (f"f64[4x6]=@{npy}", r"expected f64\[4x6\], the file holds f32\[4x6\]"),
        (f"bf16[4x6]=@{npy}", "the file holds f32"),
        (f"f32[4x6]=@{npz}", "name the array"),
        (f"f32[4x6]=@{npz}:q", "has no array 'q'; it has 'y'"),
        (f"f32[3]=@{raw}", "the file holds void24"),
        (f"f32[3]=@{rows}", "the file holds void32"),
        (f"i64[2]=@{objects}", r"Python objects \(pickled\), which are not read"),
        (f"i64[2]=@{tmp_path}", "not a regular file"),
        (f"i64[2]=@{tmp_path / 'x.npy'}/y", "Not a directory"),
        (f"i64[2]=@{tmp_path / 'none.npy'}", "No such file"),
        ("i64[2]=@/dev/zero", "not a regular file"),
    ]:
        with pytest.raises((ValueError, OSError), match=reason):
            draw(text)


def test_an_npy_file_named_npz(tmp_path, rng):
    path = save(tmp_path, "x.npy", rng.standard_normal(4)).rename(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"not an \.npz file, so it has no array 'y'"):
        draw(f"f64[4]=@{path}:y")
    # The content counts.
    assert draw(f"f64[4]=@{path}").any()


def test_a_header_that_promises_too_much_is_not_followed(tmp_path):
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 60,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(16))
    with pytest.raises(ValueError, match=r"the file holds f32\[1152921504606846976\]"):
        draw(f"f32[4]=@{path}")


def test_a_header_of_gigabytes_is_not_read(tmp_path):
    """Compressed it takes a few kilobytes of the file for each megabyte."""
    path, promised = tmp_path / "x.npz", 1 << 25
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        text = b"\x93NUMPY\x02\x00" + promised.to_bytes(4, "little") + b" " * promised
        archive.writestr("y.npy", text)
    del text
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not a readable NumPy file"):
            draw(f"f32[4]=@{path}:y")
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_one_array_of_an_npz_file_whatever_the_others_are(tmp_path, rng):
    values = rng.standard_normal(4)
    objects = np.array([{}, []], object)
    path = save(tmp_path, "x.npz", y=values, z=objects)
    assert (draw(f"f64[4]=@{path}:y") == values).all()
    with pytest.raises(ValueError, match=r"x\.npz:z: it holds Python objects"):
        draw(f"i64[2]=@{path}:z")


def test_an_npz_file_is_opened_once_for_all_of_its_headers(tmp_path, rng, monkeypatch):
    """To open it is to read its directory: for each array that took minutes of thousands."""
    path = save(tmp_path, "x.npz", **{f"a{at}": rng.standard_normal(2) for at in range(50)})
    opened = []

    class Counting(zipfile.ZipFile):
        def __init__(self, *args, **keywords):
            opened.append(args)
            super().__init__(*args, **keywords)

    monkeypatch.setattr("cakert.cli.numpy_files.zipfile.ZipFile", Counting)
    assert len(open_arrays(path)) == 50
    assert len(opened) == 1


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_damaged_files_are_refused_with_a_sentence(name, tmp_path, rng):
    values = rng.integers(1, 99, (16, 3)).astype(np.int32)
    if name == "x.npz":
        np.savez_compressed(tmp_path / name, y=values, z=values)
    else:
        np.save(tmp_path / name, values)
    whole = (tmp_path / name).read_bytes()
    text = f"i32[16x3]=@{tmp_path / name}" + (":y" if name == "x.npz" else "")
    assert (draw(text) == values).all()
    damaged = [whole[:at] for at in rng.integers(0, len(whole), 60)]
    for at in rng.integers(0, len(whole), 200):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    refused = 0
    for data in damaged:
        (tmp_path / name).write_bytes(data)
        try:
            draw(text)
        except (ValueError, OSError, MemoryError) as problem:
            refused += 1
            assert str(problem)
    assert refused >= 60


def test_structs_from_files(tmp_path):
    path = tmp_path / "p.bin"
    path.write_bytes(struct.pack("<qif", 5, -1, 0.5))
    assert make_bytes(parse(f"bytes=@{path}")) == path.read_bytes()
    assert make_bytes(parse("bytes=00ff")) == b"\x00\xff"
    path.write_bytes(bytes(32765))
    with pytest.raises(ValueError, match="1 to 32764 bytes, the file has 32765"):
        make_bytes(parse(f"bytes=@{path}"))
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="the file has 0"):
        make_bytes(parse(f"bytes=@{path}"))
    for other in (tmp_path, "/dev/zero"):
        with pytest.raises(ValueError, match="not a regular file"):
            make_bytes(parse(f"bytes=@{other}"))


def test_bf16_has_two_spellings_in_files(tmp_path, rng):
    """As NumPy stores ml_dtypes' arrays; the other one is that of a result file."""
    values = rng.standard_normal(9).astype(ml_dtypes.bfloat16)
    path = save(tmp_path, "x.npy", values)
    assert np.load(path).dtype == np.dtype("V2")
    assert (draw(f"bf16[9]=@{path}") == values).all()
    path = save(tmp_path, "u.npy", values.view(np.uint16))
    with pytest.raises(ValueError, match=r"the file holds u16\[9\]"):
        draw(f"bf16[9]=@{path}")
