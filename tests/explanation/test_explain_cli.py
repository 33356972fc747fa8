"""`cakert explain`: files good and bad, what is printed and drawn, and that docs agree."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import zipfile

import numpy as np
import pytest
from helpers.stub import run_with_stub

import cakert
from cakert.cli.main import main
from cakert.cli.mask_file import read_pattern
from cakert.explanation import records


@pytest.fixture
def mask(rng):
    mask = rng.random((3, 9, 14)) < 0.4
    mask[..., 5] = True
    return mask


def saved(folder, array, name="mask.npy"):
    path = folder / name
    np.save(path, array)
    return str(path)


def explained(capsys, *arguments):
    """The JSON of a run that goes well."""
    assert main(["explain", *arguments, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


def refused(capsys, *arguments):
    """The line on stderr of a run that fails."""
    assert main(["explain", *map(str, arguments)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("cakert: error: ")
    assert shown.err.count("\n") == 1
    return shown.err


# --- good files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "int8"])
def test_masks_of_every_type(dtype, mask, rng, tmp_path, capsys):
    values = mask * rng.integers(1, 100, mask.shape) * (-1 if dtype.startswith("int") else 1)
    path = saved(tmp_path, np.asfortranarray(values.astype(dtype)))
    assert np.array_equal(read_pattern(tmp_path / "mask.npy").block_mask, mask)
    found = explained(capsys, path)
    assert found["tiles"]["selected"] == mask.sum()
    assert found["machine"]["name"] == "NVIDIA H200"
    assert found["predicted_us"] > 0


def test_a_mask_of_two_axes_is_of_all_heads(mask, tmp_path, capsys):
    path = saved(tmp_path, mask[0])
    assert explained(capsys, path)["shape"]["num_qo_heads"] == 1
    found = explained(capsys, path, "--heads", "6", "--kv-heads", "2")
    assert (found["shape"]["num_qo_heads"], found["shape"]["num_kv_heads"]) == (6, 2)
    assert found["tiles"]["selected"] == 6 * mask[0].sum()
    assert found["tiles"]["distinct"] == 2 * mask[0].any(axis=0).sum()


def test_a_mask_of_kv_heads(mask, tmp_path, capsys):
    found = explained(capsys, saved(tmp_path, mask), "--heads", "12", "--kv-heads", "3")
    assert found["tiles"]["selected"] == 4 * mask.sum()


def test_files_with_several_arrays(mask, rng, tmp_path, capsys):
    one = mask[:1].repeat(3, axis=0)
    counts = one.sum(axis=2).astype(np.int64)
    lists = np.full((3, 9, 14), -(2**40))  # past a row's count there may be anything
    for row in np.ndindex(3, 9):
        lists[row][: counts[row]] = rng.permutation(np.flatnonzero(one[row]))
    lens = rng.integers(1, 65, 14)
    np.savez(tmp_path / "mask.npz", block_mask=one, kv_block_lens=lens, comment=np.array("mine"))
    np.savez_compressed(tmp_path / "q2k.npz", q2k_indices=lists, q2k_num=counts)
    indptr = np.concatenate(([0], counts[0].cumsum()))
    np.savez(tmp_path / "bsr.npz", indptr=indptr, indices=np.nonzero(one[0])[1])
    first = explained(capsys, str(tmp_path / "mask.npz"))
    assert first["traffic"]["plan"] > 14 * 4
    for name in ("q2k", "bsr"):
        options = ["--kv-blocks", "14", *(["--heads", "3"] if name == "bsr" else [])]
        found = explained(capsys, str(tmp_path / f"{name}.npz"), *options)
        assert found["traffic"].pop("plan") < first["traffic"]["plan"]
        first_but_plan = {k: v for k, v in first["traffic"].items() if k != "plan"}
        assert found == {**first, "traffic": first_but_plan}


def test_options_reach_the_plan(mask, tmp_path, capsys):
    path = saved(tmp_path, mask)
    options = ["--block", "128", "--head-dim", "96", "--dtype", "float16"]
    found = explained(capsys, path, *options)
    assert found["route"] == "cake_vsa_sm90_r128_d96_fp16"
    assert found["shape"]["q_tokens"] == 9 * 128
    found = explained(capsys, path, "--device", "b300")
    assert found["family"] == "portable"
    assert (found["machine"]["capability"], found["machine"]["sms"]) == ([10, 3], 148)
    assert found["predicted_us"] is None
    found = explained(capsys, path, "--sms", "66")
    assert found["machine"]["name"] == "NVIDIA H200 with 66 SMs"
    assert (found["predicted_us"], found["limits"]) == (None, {})
    assert len(found["load"]["sm_steps"]) == 66
    found = explained(capsys, path, "--device", "h100")
    assert (found["family"], found["predicted_us"]) == ("sm90_split", None)


def test_text_and_picture(mask, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = saved(tmp_path, mask)
    for name in ("picture.svg", "picture.png"):
        assert main(["explain", path, "--out", str(tmp_path / name)]) == 0
        shown = capsys.readouterr()
        assert shown.out.startswith("main reason ")
        assert f"{mask.sum():,} selected" in shown.out
        assert "NVIDIA H200 (9.0), 132 SMs" in shown.out
    assert (tmp_path / "picture.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_on_a_gpu(tmp_path, rng):
    lists = rng.random((2, 5, 8)).argsort(axis=2)[..., :3].astype(np.int32)
    path = tmp_path / "q2k.npz"
    np.savez(path, q2k_indices=lists)
    arguments = ["explain", str(path), "--kv-blocks", "8", "--device", "cuda:0", "--json"]
    done = run_with_stub(
        f"import sys; from cakert.cli.main import main; sys.exit(main({arguments!r}))",
        env={"STUB_CUDA_NAME": "NVIDIA H200"},
    )
    found = json.loads(done.stdout)
    assert found["tiles"]["selected"] == 30
    assert found["machine"]["name"] == "NVIDIA H200"


# --- bad files ------------------------------------------------------------------------------------


def test_files_that_are_not_there_or_something_else(tmp_path, capsys):
    assert "No such file" in refused(capsys, tmp_path / "nothing.npy")
    assert "not a regular file" in refused(capsys, tmp_path)
    for content in (b"", b"PK", b"hello, world", b"\x00" * 100):
        (tmp_path / "x.npy").write_bytes(content)
        assert "x.npy: it is neither a .npy nor a .npz file" in refused(capsys, tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones((2, 3, 4), np.float32), "must be bool or of integers, got float32"),
        (np.ones((2, 3, 4), complex), "got complex128"),
        (np.array([["a", "b"]]), "got <U1"),
        (np.ones(4, bool), "(MB, NB) for all heads, got shape (4,)"),
        (np.ones((1, 2, 3, 4), bool), "got shape (1, 2, 3, 4)"),
        (np.array(True), "got shape ()"),
        (np.ones((2, 0, 4), bool), "empty"),
        (np.array([[None, {}]], dtype=object), "holds Python objects"),
    ],
)
def test_arrays_that_are_no_mask(array, words, tmp_path, capsys):
    line = refused(capsys, saved(tmp_path, array))
    assert words in line
    assert "mask.npy" in line


def header(shape, descr="|b1"):
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    "shape", [(8, 10**6, 10**6), (2**40, 2**40), (10, 10, 10), (-1, 4, 4), (2**70, 1)]
)
def test_headers_that_promise_more_than_there_is(shape, tmp_path, capsys):
    """Nothing is allocated for them, neither of .npy nor of .npz files."""
    words = "file has" if shape == (10, 10, 10) else ""
    data = header(shape) + b"\x01" * 99
    (tmp_path / "a.npy").write_bytes(data)
    assert words in refused(capsys, tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("block_mask.npy", data)
    assert words in refused(capsys, tmp_path / "a.npz")


def test_no_damage_gives_a_traceback(mask, rng, tmp_path, capsys):
    np.save(tmp_path / "a.npy", mask)
    np.savez_compressed(tmp_path / "a.npz", block_mask=mask)
    names = ["a.npy", "a.npz"]
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):  # numpy writes neither and reads both
        names.append(f"{kind}.npz")
        with zipfile.ZipFile(tmp_path / names[-1], "w", kind) as archive:
            archive.write(tmp_path / "a.npy", "block_mask.npy")
        assert np.array_equal(read_pattern(tmp_path / names[-1]).block_mask, mask)
    failed = 0
    for name in names:
        whole = (tmp_path / name).read_bytes()
        for _ in range(150):
            data = bytearray(whole)
            if rng.random() < 0.3:
                del data[int(rng.integers(len(data))) :]
            else:
                for place in rng.integers(len(data), size=rng.integers(1, 4)):
                    data[place] = rng.integers(256)
            (tmp_path / f"damaged-{name}").write_bytes(data)
            try:
                read_pattern(tmp_path / f"damaged-{name}")  # flipped cells are a mask as well
            except ValueError as problem:
                failed += 1
                assert f"damaged-{name}" in str(problem)
    assert failed > 50


def test_archives_without_a_pattern(mask, tmp_path, capsys):
    np.savez(tmp_path / "a.npz", mask=mask)
    line = refused(capsys, tmp_path / "a.npz")
    assert "must hold block_mask, or q2k_indices, or indptr and indices; it has 'mask'" in line
    np.savez(tmp_path / "a.npz")
    assert "it has nothing" in refused(capsys, tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"q2k_indices": np.zeros((2, 3, 4))}, "must be int32 or int64, got float64"),
        ({"q2k_indices": np.zeros((3, 4), int)}, "must have 3 axes, got shape (3, 4)"),
        ({"q2k_indices": np.full((1, 1, 1), 7)}, "must be in [0, NB) = [0, 7), got 7"),
        ({"q2k_indices": np.full((1, 1, 1), 2**33)}, "must be in [0, NB) = [0, 7)"),
        ({"q2k_indices": np.zeros((1, 1, 2), int)}, "must name each block once"),
        ({"q2k_indices": np.zeros((1, 1, 9), int)}, "topk"),
        ({"q2k_num": np.ones((1, 1), int)}, "q2k_num was given without q2k_indices"),
        ({"indptr": np.array([0, 1])}, "indptr was given without indices"),
        ({"indices": np.array([0, 1])}, "indices was given without indptr"),
        ({"indptr": np.array([[0, 1]]), "indices": np.array([3])}, "one axis, got shape (1, 2)"),
        ({"indptr": np.array([0, 2, 1]), "indices": np.array([3])}, "must not fall"),
        ({"indptr": np.array([0, 0, 1]), "indices": np.array([3])}, "selects none"),
        ({"indptr": np.array([0, 1]), "indices": np.array([7])}, "[0, 7), got 7"),
        ({"kv_block_lens": np.ones(7, int)}, "a pattern must be given"),
    ],
)
def test_lists_that_plan_refuses(arrays, words, tmp_path, capsys):
    np.savez(tmp_path / "a.npz", **arrays)
    assert words in refused(capsys, tmp_path / "a.npz", "--kv-blocks", "7")


def test_rows_that_select_nothing_are_counted(mask, tmp_path, capsys):
    mask[1, 4] = mask[2, 0] = mask[2, 8] = False
    line = refused(capsys, saved(tmp_path, mask))
    assert "3 of 27 rows select none, the first at head 1, query block 4" in line
    line = refused(capsys, saved(tmp_path, mask[2]))
    assert "2 of 9 rows select none, the first at query block 0" in line


def test_shapes_that_plan_refuses(mask, tmp_path, capsys):
    path = saved(tmp_path, mask)
    assert "num_qo_heads must be a multiple" in refused(capsys, path, "--kv-heads", "2")
    assert "block_mask must have shape" in refused(capsys, path, "--heads", "8")
    np.savez(tmp_path / "a.npz", indptr=np.arange(1001), indices=np.zeros(1000, int))
    line = refused(capsys, tmp_path / "a.npz", "--kv-blocks", "30000000")
    assert "must be at most 1073741824 here, got 30000000000" in line
    line = refused(capsys, saved(tmp_path, mask[0], "one.npy"), "--heads", "10000000")
    assert "must be at most 1073741824 here, got 1260000000" in line
    np.savez(tmp_path / "a.npz", block_mask=mask, kv_block_lens=np.full(14, 64))
    assert "kv_block_lens needs 64-token" in refused(capsys, tmp_path / "a.npz", "--block", "128")


def test_pictures_that_cannot_be_drawn_are_refused_before_the_work(mask, tmp_path, capsys):
    missing = tmp_path / "nothing.npy"
    assert "must end in .svg or .png" in refused(capsys, missing, "--out", tmp_path / "a.jpg")
    pytest.importorskip("matplotlib")
    path = saved(tmp_path, mask)
    assert "No such file" in refused(capsys, path, "--out", tmp_path / "nowhere" / "a.svg")


@pytest.mark.parametrize(
    "options",
    [
        ("--device", "cpu"),
        ("--device", "cuda"),
        ("--device", "cuda:-1"),
        ("--sms", "0"),
        ("--sms", "1025"),
        ("--sms", "4", "--device", "cuda:0"),
        ("--block", "32"),
        ("--head-dim", "100"),
        ("--heads", "x"),
        ("--kv-blocks", "13"),
    ],
)
def test_wrong_usage(options, mask, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["explain", saved(tmp_path, mask), *options])
    assert stop.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "usage: cakert explain" in shown.err


def test_lists_need_the_number_of_kv_blocks(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", q2k_indices=np.zeros((1, 1, 1), np.int32))
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(tmp_path / "a.npz")])
    assert stop.value.code == 2
    assert "--kv-blocks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--help"], "which kernel runs a mask"), (["explain", "--help"], "exit status: 0 well")],
)
def test_help(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    assert words in " ".join(capsys.readouterr().out.split())


# --- the page -------------------------------------------------------------------------------------


def test_the_page_has_every_field(project):
    text = (project / "docs" / "explain.md").read_text()
    table = text[text.index("## What the numbers mean") :].split("\n\n")[2]
    assert table.startswith("| field | what |")
    listed = {
        name
        for line in table.splitlines()[2:]
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    with cakert.sim.device("sm_90a") as device:
        p = cakert.plan_cake_vsa(
            None, None, np.ones((1, 1, 1), bool), None, None, None,
            M=64, N=64, R=64, C=64, num_qo_heads=1, num_kv_heads=1, head_dim=64,
            q_data_type="float16", sm_scale=None, device=device,
        )  # fmt: skip
        found = cakert.explain(p).as_dict()
    assert listed == found.keys()
    for record in (records.RowCounts, records.Tiles, records.Load, records.Traffic):
        for field in dataclasses.fields(record):
            assert f"`{field.name}`" in table, field.name
    causes = text[text.index("| `cause` | named where |") :].split("\n\n")[0]
    for cause in ("tensor core", "L2", "HBM", "start", "idle SMs", "imbalance", "steps", "unknown"):
        assert f"`{cause}`" in causes


def test_the_example_of_the_page(project, tmp_path, capsys):
    import draw_example

    assert main(["explain", saved(tmp_path, draw_example.example())]) == 0
    text = (project / "docs" / "explain.md").read_text()
    assert f"```\n{capsys.readouterr().out}```\n" in text
    assert (project / "docs" / "pictures" / "explain.svg").stat().st_size < 300_000
