"""Tensors of a run, made by hand: offsets, strides, types, devices, signatures of producers."""

from __future__ import annotations

import itertools
import re

import pytest
from tensor_scripts import launched_addresses, refuse_each, run_script, words


def test_axes_of_size_one_may_have_any_stride():
    """F50."""
    result = run_script(
        """
        p = Problem(q_heads=1, kv_heads=1)
        plan, wanted = p.plan(), []
        for middle in (1, 128, 7, -3):
            tensors = [FakeCuda(p.array(name), strides=(128, middle, 1)) for name in p.shapes()][:4]
            tensors.append(FakeCuda(p.array("lse"), strides=(1, middle)))
            run(plan, *tensors[:3], out=tensors[3], lse=tensors[4], return_lse=True)
            wanted.append([t.address for t in tensors])
        tensors = [FakeCuda(p.array(name), null_strides=True) for name in p.shapes()]
        run(plan, *tensors[:3], out=tensors[3], lse=tensors[4], return_lse=True)
        wanted.append([t.address for t in tensors])
        report(wanted)
        """
    )
    assert launched_addresses(result) == result.report


@pytest.mark.parametrize("versioned", [True, False])
def test_the_byte_offset_is_added(versioned):
    """F51, for every tensor."""
    result = run_script(
        f"""
        p = Problem()
        # The base that is reported need not be aligned: what counts is where the elements lie.
        offsets = 4096, 16, 2, 64, 4
        q, k, v, out, lse = tensors = [
            FakeCuda(p.array(name), byte_offset=offset, versioned={versioned})
            for name, offset in zip(p.shapes(), offsets)]
        run(p.plan(), q, k, v, out=out, lse=lse, return_lse=True)
        report([t.address for t in tensors])
        """
    )
    assert launched_addresses(result) == [result.report]


INPUTS_AND_OUT = ("q", "k", "v", "out")


def test_misaligned_tensors_are_refused():
    """F52: by an element, or by half of the 16 bytes; views aligned to 16 bytes work."""
    cases = [
        (name, f"FakeCuda(p.array({name!r}, offset={offset}))")
        for name, offset in itertools.product(INPUTS_AND_OUT, (2, 8))
    ]
    for text in refuse_each(cases, "p = Problem(); plan = p.plan()"):
        assert "16" in text
    result = run_script(
        """
        p = Problem()
        run(p.plan(), *(FakeCuda(p.array(n, offset=16)) for n in "qkv"),
            out=FakeCuda(p.array("out", offset=48)))
        """
    )
    assert len(launched_addresses(result)) == 1


@pytest.mark.parametrize("signature", ["full", "stream+version", "stream"])
@pytest.mark.parametrize("versioned", [True, False])
def test_signatures_and_capsules(signature, versioned):
    """F54: what producers are called with, and that both capsules are read and released."""
    result = run_script(
        f"""
        make_current(0)
        p = Problem()
        plan = p.plan()
        tensors = p.tensors("q", "k", "v", "out", "lse", signature={signature!r},
                            versioned={versioned})
        q, k, v, out, lse = tensors
        run(plan, q, k, v, out=out, lse=lse, return_lse=True)
        report([[t.address, t.exports, t.releases, t.requests] for t in tensors])
        """
    )
    assert launched_addresses(result) == [[row[0] for row in result.report]]
    for _, exports, releases, requests in result.report:
        assert exports == releases == len(requests) >= 1
        for request in requests:
            # 0 is not allowed for CUDA there; 1 is the legacy default stream.
            assert request["stream"] == 1
            if signature != "stream":
                assert request["max_version"][0] >= 1
            if signature == "full":
                assert request["copy"] is not True


def test_a_null_deleter_and_an_unknown_major_version():
    result = run_script(
        """
        p = Problem()
        plan = p.plan()
        q, k, v, out = p.tensors("q", "k", "v", "out")
        run(plan, FakeCuda(q.array, null_deleter=True), k, v, out=out)
        newer = FakeCuda(k.array, major=2)
        error = failure(lambda: run(plan, q, newer, v, out=out))
        report([error, newer.exports, newer.releases, q.exports, q.releases])
        """
    )
    error, *counts = result.report
    assert "2" in error["text"] and error["type"] in ("BufferError", "ValueError", "TypeError")
    assert counts[0] == counts[1] == 1, "the deleter is called although the version is unknown"
    assert counts[2] == counts[3]
    assert len(launched_addresses(result)) == 1


def test_other_element_types_are_refused():
    """F57: both types are named."""
    found = {
        "code=FLOAT": "float16",
        "lanes=2": "bfloat16x2",
        "code=FLOAT8_E4M3FN, bits=8": "float8_e4m3fn",
        "bits=32": "bfloat32",
        "code=99": "code99_16",
    }
    pairs = list(itertools.product(INPUTS_AND_OUT, found))
    cases = [(name, f"FakeCuda(p.array({name!r}), {options})") for name, options in pairs]
    texts = refuse_each(cases, "p = Problem(); plan = p.plan()")
    for (_, options), text in zip(pairs, texts, strict=True):
        assert "bfloat16" in words(text)
        assert found[options] in words(text) or options in ("bits=32", "code=99"), text


def test_fp16_plan_and_lse_of_another_type():
    result = run_script(
        """
        p = Problem(dtype="float16")
        plan = p.plan()
        q, k, v, out = p.tensors("q", "k", "v", "out")
        run(plan, q, k, v, out=out)
        bf16 = FakeCuda(aligned(p.shapes()["v"], ml_dtypes.bfloat16))
        lse = FakeCuda(aligned(p.shapes()["lse"], np.float64))
        report([failure(lambda: run(plan, q, k, bf16, out=out)),
                failure(lambda: run(plan, q, k, v, out=out, lse=lse, return_lse=True))])
        """
    )
    (v, lse) = result.report
    assert v["type"] == lse["type"] == "ValueError"
    assert "float16" in v["text"] and "bfloat16" in v["text"]
    assert "float32" in lse["text"] and "float64" in lse["text"]
    assert len(launched_addresses(result)) == 1


def test_other_shapes_are_refused():
    """F20, F58: the message quotes both shapes."""
    wanted = {"q": (256, 4, 128), "k": (448, 2, 128), "v": (448, 2, 128)}
    wanted |= {"out": (256, 4, 128), "lse": (256, 4)}
    shapes = [
        ("q", (0, 4, 128)),
        ("k", (0, 2, 128)),
        ("q", (192, 4, 128)),
        ("k", (384, 2, 128)),
        ("v", (448, 4, 128)),
        ("out", (256, 4, 64)),
        ("q", (256, 512)),
        ("q", (1, 256, 4, 128)),
        ("lse", (4, 256)),
        ("lse", (256, 4, 1)),
    ]
    cases = [
        (name, f"FakeCuda(aligned({shape}, {'np.float32' if name == 'lse' else 'p.element'}))")
        for name, shape in shapes
    ]
    texts = refuse_each(cases, "p = Problem(); plan = p.plan()", ", return_lse=True")
    for (name, shape), text in zip(shapes, texts, strict=True):
        assert str(shape) in text and str(wanted[name]) in text


@pytest.mark.parametrize("tokens", ["M=0", "N=0"])
def test_empty_problems_are_refused_by_plan(tokens):
    """F58."""
    result = run_script(
        f"report(failure(lambda: Problem({tokens}).plan(block_mask=np.ones((4, 4, 7), bool))))"
    )
    assert result.report["type"] == "ValueError" and f"{tokens[0]} must be" in result.report["text"]
    assert result.trace == []


def test_strided_tensors_are_refused():
    """F42, F61: with the strides in the message; the memory of a refused output is untouched."""
    kinds = {
        "FakeCuda(wide((s[0], s[1], 2 * s[2]))[..., ::2])": "(2 * s1 * d, 2 * d, 2)",
        "FakeCuda(wide((s[1], s[0], s[2])).transpose(1, 0, 2))": "(d, s0 * d, 1)",
        "FakeCuda(wide(s)[::-1])": "(-s1 * d, d, 1)",
        "FakeCuda(wide(s), strides=(0, s[2], 1))": "(0, d, 1)",
    }
    shapes = {"q": (256, 4), "k": (448, 2), "v": (448, 2), "out": (256, 4)}
    pairs = list(itertools.product(shapes, kinds))
    cases = [(n, re.sub(r"\bs\b", f"p.shapes()[{n!r}]", make)) for n, make in pairs]
    setup = "p = Problem(); plan = p.plan(); wide = lambda shape: aligned(shape, p.element)"
    for (name, make), text in zip(pairs, refuse_each(cases, setup), strict=True):
        tokens, heads = shapes[name]
        strides = eval(kinds[make], {"s0": tokens, "s1": heads, "d": 128})
        assert "strides" in words(text) and str(strides) in text, (make, text)


def test_tensors_elsewhere_are_refused():
    """F59, F61, F63: the message names both places."""
    places = {"device=1": "cuda:1", "device_type=CPU": "CPU", "device_type=7": "7"}
    names = (*INPUTS_AND_OUT, "lse")
    pairs = list(itertools.product(names, places))
    cases = [(name, f"FakeCuda(p.array({name!r}), {place})") for name, place in pairs]
    setup = "p = Problem(); plan = p.plan(device=0)"
    texts = refuse_each(cases, setup, ", return_lse=True", devices=2)
    for (_, place), text in zip(pairs, texts, strict=True):
        assert "cuda:0" in text and places[place] in text, (place, text)


def test_numpy_arrays_are_tensors_of_the_cpu():
    cases = [(name, f"p.array({name!r})") for name in INPUTS_AND_OUT]
    for text in refuse_each(cases, "p = Problem(); plan = p.plan()"):
        assert "CPU" in text and "cuda:0" in text


def test_array_interfaces():
    """fp16 has an array interface; bf16 has none."""
    result = run_script(
        """
        make_current(0)
        p = Problem(dtype="float16")
        plan = p.plan()
        q, k, v, out = (FakeCai(p.array(name)) for name in ("q", "k", "v", "out"))
        run(plan, q, k, v, out=out)
        locked = FakeCai(p.array("out"), readonly=True)
        errors = [failure(lambda: run(plan, q, k, v, out=locked))]
        wide = aligned((256, 4, 256), np.float16)[..., ::2]
        errors.append(failure(lambda: run(plan, FakeCai(wide), k, v, out=out)))
        report([errors, [address_of(t.array) for t in (q, k, v, out)]])
        """
    )
    errors, addresses = result.report
    assert [error["type"] for error in errors] == ["ValueError"] * 2
    assert "read-only" in errors[0]["text"] or "readonly" in errors[0]["text"]
    assert "stride" in errors[1]["text"]
    assert launched_addresses(result) == [[*addresses, 0]]
