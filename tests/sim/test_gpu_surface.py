"""`sim.Gpu` as a caller sees it: targets, memory, arguments, geometry."""

from __future__ import annotations

import gc
import pathlib
import threading

import ml_dtypes
import numpy as np
import pytest

from cakert import sim

HEADER = ".version 9.0\n.target {target}\n.address_size 64\n"

# y[i] = a * x[i] + b for i < n; b comes in a struct with a hole: {u8, pad, u32 bits of b}.
AXPB = (
    HEADER.format(target="sm_90")
    + """
.visible .entry axpb(
	.param .u64 p_y, .param .u64 p_x, .param .u32 p_n, .param .f32 p_a,
	.param .align 4 .b8 p_s[8]
)
.maxntid 64
{
	.reg .pred %p<2>;
	.reg .b32 %r<6>;
	.reg .b32 %f<4>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [p_y];
	ld.param.u64 %rd2, [p_x];
	ld.param.u32 %r1, [p_n];
	ld.param.f32 %f1, [p_a];
	ld.param.f32 %f2, [p_s+4];
	mov.u32 %r2, %tid.x;
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %ntid.x;
	mad.lo.s32 %r5, %r3, %r4, %r2;
	setp.ge.u32 %p1, %r5, %r1;
	@%p1 bra $done;
	mul.wide.u32 %rd3, %r5, 4;
	add.s64 %rd4, %rd2, %rd3;
	add.s64 %rd5, %rd1, %rd3;
	ld.global.f32 %f3, [%rd4];
	fma.rn.f32 %f3, %f1, %f3, %f2;
	st.global.f32 [%rd5], %f3;
$done:
	ret;
}
"""
)

# counter[0] += 1 by one thread a CTA; a variable of the module counts too.
COUNT = (
    HEADER.format(target="sm_90")
    + """
.global .align 4 .u32 total = 5;
.visible .entry count(.param .u64 p_out)
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	mov.u32 %r1, %tid.x;
	setp.ne.u32 %p1, %r1, 0;
	@%p1 bra $done;
	mov.u64 %rd1, total;
	atom.global.add.u32 %r2, [%rd1], 1;
	ld.param.u64 %rd2, [p_out];
	atom.global.add.u32 %r3, [%rd2], 1;
$done:
	ret;
}
"""
)


def entry(directives="", parameters="", body="ret;", target="sm_90", name="k"):
    return (
        HEADER.format(target=target)
        + f".visible .entry {name}({parameters})\n{directives}\n{{\n{body}\n}}\n"
    )


@pytest.fixture
def rng():
    return np.random.default_rng()


@pytest.fixture
def gpu():
    return sim.Gpu("sm_90a")


def struct_of(b):
    return b"\x7f\0\0\0" + np.float32(b).tobytes()


# --- the GPU --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "sm_80"}, "arch must be one of sm_90a, sm_100a, sm_103a, got 'sm_80'"),
        ({"arch": "sm_90"}, "arch must be one of"),
        ({"arch": 90}, "arch must be one of"),
        ({"schedule": "fast"}, "schedule must be one of eager, lazy, random, got 'fast'"),
        ({"sms": 0}, "sms must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"ignore": "deadlock"}, "ignore must be a collection of fault names"),
        (
            {"ignore": ["deadlock", "dedlock", "uninitialized-shared"]},
            "ignore must be names of faults, got 'dedlock', 'uninitialized-shared'$",
        ),
        ({"max_operations": 0}, "max_operations must be at least 1, got 0"),
    ],
)
def test_a_gpu_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        sim.Gpu(**{"arch": "sm_90a", **arguments})


@pytest.mark.parametrize(
    ("arch", "capability"), [("sm_90a", (9, 0)), ("sm_100a", (10, 0)), ("sm_103a", (10, 3))]
)
def test_capability(arch, capability):
    gpu = sim.Gpu(arch)
    assert (gpu.arch, gpu.capability) == (arch, capability)


@pytest.mark.parametrize(
    ("target", "runs_on"),
    [
        ("sm_75", {"sm_90a", "sm_100a", "sm_103a"}),
        ("sm_90", {"sm_90a", "sm_100a", "sm_103a"}),
        ("sm_90a", {"sm_90a"}),
        ("sm_100", {"sm_100a", "sm_103a"}),
        ("sm_100a", {"sm_100a"}),
        ("sm_100f", {"sm_100a", "sm_103a"}),
        ("sm_103", {"sm_103a"}),
        ("sm_103a", {"sm_103a"}),
        ("sm_103f", {"sm_103a"}),
        ("sm_120a", set()),
    ],
)
def test_targets(target, runs_on):
    for arch in sim.ARCHITECTURES:
        gpu = sim.Gpu(arch)
        if arch in runs_on:
            assert gpu.load_ptx(entry(target=target)).kernels == ("k",)
        else:
            with pytest.raises(ValueError, match=rf"\.target {target} .*simulated {arch}"):
                gpu.load_ptx(entry(target=target))


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint64, np.bool_]
)
def test_arrays_are_copies(gpu, rng, dtype):
    values = rng.integers(0, 2, (3, 5)).astype(dtype)
    array = gpu.array(values.T)
    assert (array.shape, array.dtype, array.nbytes) == ((5, 3), values.dtype, values.nbytes)
    assert array.pointer % 256 == 0
    was = values.copy()
    values[:] = 1
    assert np.array_equal(array.numpy(), was.T)
    read = array.numpy()
    read[:] = 0
    assert np.array_equal(array.numpy(), was.T)
    array.copy_from(values.T)
    assert np.array_equal(array.numpy(), values.T)
    with pytest.raises(ValueError, match="has shape"):
        array.copy_from(values)


def test_views_share_memory_and_keep_it(gpu, rng):
    values = rng.integers(0, 99, (4, 6)).astype(np.int32)
    array = gpu.array(values)
    part = array[1:, 2:].transpose(1, 0)
    assert part.pointer == array.pointer + 4 * (6 + 2)
    assert (part.shape, part.strides) == ((4, 3), (4, 24))
    with pytest.raises(ValueError, match="would not be a view"):
        part.reshape(12)
    with pytest.raises(ValueError, match="would not be a view"):
        array[[0, 2]]
    pointer = array.pointer
    del array
    gc.collect()
    assert np.array_equal(gpu.memory.view(pointer, 96).view(np.int32), values.reshape(-1))
    del part
    gc.collect()
    with pytest.raises(sim.Fault, match="global-out-of-bounds"):
        gpu.memory.view(pointer, 4)


def test_a_view_of_another_dtype(gpu, rng):
    values = rng.standard_normal((4, 6)).astype(np.float32)
    array = gpu.array(values)
    words = array.view(np.uint16)
    assert (words.shape, words.pointer) == ((4, 12), array.pointer)
    assert np.array_equal(words.numpy(), values.view(np.uint16))


def test_objects_are_no_arrays(gpu):
    with pytest.raises(TypeError, match="holds numbers"):
        gpu.array(np.array([None]))


def test_lending(gpu, rng):
    values = rng.standard_normal(100).astype(np.float32)
    out = np.zeros(100, np.float32)
    module = gpu.load_ptx(AXPB)
    with gpu.lend(values, name="x") as x, gpu.lend(out.ctypes.data, out.nbytes, writable=True) as y:
        assert x.pointer == values.ctypes.data
        with pytest.raises(ValueError, match="overlaps"):
            gpu.lend(values[3:])
        module.launch("axpb", grid=2, block=64, args=(y, x, 100, 2.0, struct_of(1)))
        # What was lent to be read must not be written.
        with pytest.raises(sim.Fault, match="x, lent read-only") as caught:
            module.launch("axpb", grid=1, block=64, args=(x, x, 10, 2.0, struct_of(1)))
        assert caught.value.name == "global-out-of-bounds"
    assert np.array_equal(out, 2 * values + 1)
    assert len(gpu.memory) == 0
    with pytest.raises(sim.Fault, match="global-out-of-bounds"):
        module.launch("axpb", grid=1, block=64, args=(y, x, 10, 2.0, struct_of(1)))


@pytest.mark.parametrize(
    ("lent", "message"),
    [
        (lambda a: (a[::2],), "C-contiguous"),
        (lambda a: (a, 4), "nbytes goes with an address"),
        (lambda a: (a.ctypes.data,), "nbytes must be given"),
    ],
)
def test_lending_refuses(gpu, lent, message):
    with pytest.raises(ValueError, match=message):
        gpu.lend(*lent(np.zeros(8)))


def test_read_only_arrays_are_not_lent_to_be_written(gpu):
    array = np.zeros(8)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only array"):
        gpu.lend(array, writable=True)


def test_lending_tensors(gpu, rng):
    torch = pytest.importorskip("torch")
    x, out = torch.from_numpy(rng.standard_normal(40).astype(np.float32)), torch.zeros(40)
    module = gpu.load_ptx(AXPB)
    with gpu.lend(x) as lent, gpu.lend(out, writable=True) as lent_out:
        assert (lent.pointer, lent.nbytes) == (x.data_ptr(), 160)
        module.launch("axpb", grid=1, block=64, args=(lent_out, lent, 40, 2.0, struct_of(1)))
    assert torch.equal(out, 2 * x + 1)
    with pytest.raises(ValueError, match="C-contiguous"):
        gpu.lend(torch.zeros(4, 4).T)
    for tensor in (torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4, requires_grad=True)):
        with pytest.raises(TypeError, match="x: numpy cannot take this Tensor over DLPack"):
            gpu.lend(tensor, name="x")


@pytest.mark.parametrize("memory", [1.5, "x", None, [1, 2]])
def test_only_memory_is_lent(gpu, memory):
    with pytest.raises(TypeError, match="x must be a numpy array, a tensor on the CPU or an addr"):
        gpu.lend(memory, name="x")


def test_a_tensor_is_no_number(gpu):
    torch = pytest.importorskip("torch")
    module = gpu.load_ptx(AXPB)
    message = "p_y: a torch.Tensor is not in the GPU's memory; pass gpu.array"
    with pytest.raises(TypeError, match=message):
        module.launch("axpb", grid=1, block=32, args=(torch.tensor(4), None, 0, 1.0, bytes(8)))


@pytest.mark.parametrize("n", [65, 129])
def test_a_stray_access_meets_no_neighbour(gpu, rng, n):
    """Past the end by one element, or by a block."""
    module = gpu.load_ptx(AXPB)
    y, others = gpu.array(np.zeros(64, np.float32), name="y"), []
    x = gpu.array(rng.standard_normal(n).astype(np.float32))
    others = [gpu.array(np.zeros(4096, np.float32)) for _ in range(8)]
    with pytest.raises(sim.Fault, match="past the end of y") as caught:
        module.launch("axpb", grid=3, block=64, args=(y, x, n, 1.0, struct_of(1)))
    assert caught.value.name == "global-out-of-bounds"
    assert "st.global.f32" in caught.value.where.text
    assert not any(other.numpy().any() for other in others)


# --- launches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_a_launch(rng, schedule):
    gpu = sim.Gpu("sm_100a", schedule=schedule, seed=int(rng.integers(2**31)))
    n = int(rng.integers(100, 600))
    values = rng.standard_normal(n).astype(np.float32)
    a, b = rng.standard_normal(2).astype(np.float32)
    x, y = gpu.array(values), gpu.array(np.full(n, np.nan, np.float32))
    seen = []
    grid = -(-n // 64)
    gpu.load_ptx(AXPB).launch(
        "axpb", grid=grid, block=64, args=(y, x, np.uint32(n), a, struct_of(b)),
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    exact = a.astype(np.float64) * values + b
    assert np.array_equal(y.numpy(), exact.astype(np.float32))
    assert np.array_equal(x.numpy(), values)
    assert seen[-1] == (grid, grid)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_variables_of_a_module_live_with_it(gpu):
    module, out = gpu.load_ptx(COUNT), gpu.array(np.zeros(1, np.uint32))
    for _ in range(2):
        module.launch("count", grid=(3, 2), block=32, args=(out,))
    assert out.numpy()[0] == 12
    assert module.variables["total"].numpy().view(np.uint32)[0] == 17
    again = gpu.load_ptx(COUNT)
    again.launch("count", grid=1, block=32, args=(out,))
    assert again.variables["total"].numpy().view(np.uint32)[0] == 6


def test_threads_may_launch_at_once(gpu):
    module, out = gpu.load_ptx(COUNT), gpu.array(np.zeros(1, np.uint32))
    threads = [
        threading.Thread(target=module.launch, args=("count",),
                         kwargs={"grid": 5, "block": 32, "args": (out,)})
        for _ in range(4)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out.numpy()[0] == 20


GOOD = {"p_y": None, "p_x": None, "p_n": 0, "p_a": 1.0, "p_s": bytes(8)}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"p_y": np.uint32(0)}, ValueError, "p_y has 8 bytes, a numpy.uint32 has 4"),
        ({"p_y": np.zeros(4)}, TypeError, "p_y: a numpy array is not in the GPU's memory"),
        ({"p_y": 1.5}, TypeError, "p_y is of type .u64, got the float 1.5"),
        ({"p_y": "x"}, TypeError, "p_y must be an Array, a number, .* got str"),
        ({"p_n": 2**32}, ValueError, r"p_n must be in \[-2147483648, 4294967295\] .* 4 bytes"),
        ({"p_n": -(2**31) - 1}, ValueError, "p_n must be in"),
        ({"p_n": None}, ValueError, "p_n has 4 bytes, a null pointer has 8"),
        ({"p_n": np.float32(1)}, TypeError, "p_n is of type .u32, got a numpy.float32"),
        ({"p_n": np.int64(1)}, ValueError, "p_n has 4 bytes, a numpy.int64 has 8"),
        ({"p_a": 1}, TypeError, "p_a is of type .f32, got the int 1"),
        ({"p_a": np.float64(1)}, ValueError, "p_a has 4 bytes, a numpy.float64 has 8"),
        ({"p_a": 1e39}, ValueError, "p_a must be within the range of float32"),
        ({"p_s": bytes(7)}, ValueError, "p_s has 8 bytes, the bytes that was given has 7"),
        ({"p_s": 1.0}, None, None),
    ],
)
def test_arguments(gpu, changes, error, message):
    module = gpu.load_ptx(AXPB)
    args = tuple({**GOOD, **changes}.values())
    if error is None:
        module.launch("axpb", grid=1, block=32, args=args)
        return
    with pytest.raises(error, match=message):
        module.launch("axpb", grid=1, block=32, args=args)


def test_arrays_go_into_eight_bytes_only(gpu):
    module, array = gpu.load_ptx(AXPB), gpu.array(np.zeros(4))
    with pytest.raises(ValueError, match="p_n has 4 bytes, an address has 8"):
        module.launch("axpb", grid=1, block=32, args=(None, None, array, 1.0, bytes(8)))


def test_the_number_of_arguments(gpu):
    module = gpu.load_ptx(AXPB)
    with pytest.raises(TypeError, match="takes 5 arguments, got 3: p_a, p_s missing"):
        module.launch("axpb", grid=1, block=32, args=(None, None, 0))
    with pytest.raises(TypeError, match="takes 5 arguments, got 6"):
        module.launch("axpb", grid=1, block=32, args=(*GOOD.values(), 1))


def test_parameters_are_aligned(gpu):
    parameters = (
        ".param .u8 a, .param .u64 b, .param .u16 c, .param .align 64 .b8 d[128], .param .f32 e"
    )
    module = gpu.load_ptx(entry(parameters=parameters))
    assert module.parameters("k") == ((0, 1), (8, 8), (16, 2), (64, 128), (192, 4))


def test_tensor_maps_are_arguments(gpu, rng):
    parameters = ".param .align 64 .b8 map[128], .param .u64 out"
    body = """
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [map+120];
    st.global.u64 [%rd1], %rd2;
    ret;
    """
    array = gpu.array(rng.standard_normal((64, 64)).astype(np.float16))
    tensor_map = gpu.tensor_map(array, box=(8, 64), swizzle="128B")
    out = gpu.array(np.zeros(1, np.uint64))
    module = gpu.load_ptx(entry(parameters=parameters, body=body))
    module.launch("k", grid=1, block=1, args=(tensor_map, out))
    assert out.numpy().tobytes() == tensor_map.to_bytes()[120:]
    with pytest.raises(ValueError, match="out has 8 bytes, the TensorMap that was given has 128"):
        module.launch("k", grid=1, block=1, args=(tensor_map, tensor_map))
    with pytest.raises(ValueError, match="box"):
        gpu.tensor_map(array, box=(8, 512))
    with pytest.raises(ValueError, match="view it with another dtype"):
        gpu.tensor_map(array, box=(8, 32), data_type="float32")
    viewed = gpu.tensor_map(array.view(np.float32), box=(8, 32))
    assert (viewed.data_type, viewed.dims) == ("float32", (32, 64))


def test_tensor_maps_are_of_the_gpus_arrays(gpu):
    array = np.zeros((64, 64), np.float16)
    with pytest.raises(TypeError, match="array: a numpy array is not in the GPU's memory; pass"):
        gpu.tensor_map(array, box=(8, 64))
    with gpu.lend(array) as lent, pytest.raises(TypeError, match="lent memory has no shape"):
        gpu.tensor_map(lent, box=(8, 64))


@pytest.mark.parametrize(
    ("directives", "changes", "message"),
    [
        ("", {"block": 0}, r"block\.x must be in \[1, 1024\], got 0"),
        ("", {"block": (32, 33)}, r"at most 1024 threads, got 1056 \(32, 33, 1\)"),
        ("", {"block": (1, 1, 65)}, r"block\.z must be in \[1, 64\], got 65"),
        ("", {"block": (1, 1, 1, 1)}, "block must have between 1 and 3 extents"),
        ("", {"grid": (1, 65536)}, r"grid\.y must be in \[1, 65535\], got 65536"),
        ("", {"grid": 2**31}, r"grid\.x must be in"),
        ("", {"shared_bytes": 227 * 1024 + 1}, r"shared_bytes must be in \[0, 232448\]"),
        ("", {"shared_bytes": -1}, "shared_bytes must be in"),
        ("", {"cluster": 2, "grid": 3}, r"grid must be a multiple of the cluster \(2, 1, 1\)"),
        ("", {"cluster": 17, "grid": 17}, r"cluster\.x must be in \[1, 16\], got 17"),
        ("", {"cluster": (3, 6), "grid": (3, 6)}, "cluster must have at most 16 CTAs, got 18"),
        (".maxntid 64", {"block": 96}, r"at most 64 threads, \.maxntid of k, got 96"),
        (".reqntid 64", {"block": 32}, r"block must be \(64, 1, 1\), \.reqntid of k, got \(32"),
        (".reqnctapercluster 2", {"grid": 3}, "grid must be a multiple of the cluster"),
        (
            ".reqnctapercluster 2",
            {"cluster": 4, "grid": 4},
            r"cluster must be \(2, 1, 1\), \.reqnctapercluster of k, got \(4, 1, 1\)",
        ),
    ],
)
def test_geometry_is_refused(gpu, directives, changes, message):
    module = gpu.load_ptx(entry(directives))
    with pytest.raises(ValueError, match=message):
        module.launch("k", **{"grid": 1, "block": 32, "args": (), **changes})


@pytest.mark.parametrize("changes", [{"block": "8"}, {"grid": 1.5}, {"shared_bytes": "x"}])
def test_geometry_takes_ints(gpu, changes):
    module = gpu.load_ptx(entry())
    with pytest.raises((TypeError, ValueError), match=next(iter(changes))):
        module.launch("k", **{"grid": 1, "block": 32, "args": (), **changes})


def test_a_block_of_any_shape_up_to_maxntid(gpu):
    """The product is promised, not each extent."""
    gpu.load_ptx(entry(".maxntid 64")).launch("k", grid=1, block=(4, 4, 4))


def test_static_shared_memory_counts(gpu):
    body = """
    .shared .align 16 .b8 tile[4096];
    .reg .b32 %r<3>;
    mov.u32 %r1, tile;
    mov.u32 %r2, 7;
    st.shared.u32 [%r1], %r2;
    ret;
    """
    module = gpu.load_ptx(entry(body=body))
    module.launch("k", grid=1, block=32, shared_bytes=227 * 1024 - 4096)
    with pytest.raises(ValueError, match=r"\[0, 228352\] \(232448 less 4096 static\), got 228353"):
        module.launch("k", grid=1, block=32, shared_bytes=227 * 1024 - 4095)


def test_the_limit_of_a_livelock(gpu):
    """Adding up is no sign of progress: the same loop ends under a limit that it does not reach."""
    body = """
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    mov.u32 %r1, 0;
$loop:
    add.s32 %r1, %r1, 1;
    setp.lt.s32 %p1, %r1, 20000;
    @%p1 bra $loop;
    ret;
    """
    gpu.load_ptx(entry(body=body)).launch("k", grid=1, block=32)
    hasty = sim.Gpu("sm_90a", max_operations=1000)
    with pytest.raises(sim.Fault, match="raise max_operations") as caught:
        hasty.load_ptx(entry(body=body)).launch("k", grid=1, block=32)
    assert caught.value.name == "livelock"


@pytest.mark.parametrize("end", ["", "\0"])
def test_text_may_be_bytes(gpu, end):
    for text in (entry() + end, (entry() + end).encode()):
        gpu.load_ptx(text).launch("k", grid=1, block=32)


def test_what_is_no_text(gpu):
    with pytest.raises(sim.PtxError):
        gpu.load_ptx(entry() + "\0\0")
    with pytest.raises(sim.PtxError, match=r"^line 2: byte 0xff is no UTF-8 text"):
        gpu.load_ptx(b"//\n\xff")
    with pytest.raises(TypeError, match="PTX must be a str or bytes, got PosixPath"):
        gpu.load_ptx(pathlib.Path("k.ptx"))


def test_unknown_kernels_and_unreadable_text(gpu):
    with pytest.raises(KeyError, match="no kernel 'run'; there are k"):
        gpu.load_ptx(entry()).launch("run", grid=1, block=1)
    with pytest.raises(sim.PtxError):
        gpu.load_ptx("hello")
    module = gpu.load_ptx(entry(body=".reg .b32 %r<3>;\nfrobnicate.b32 %r1, %r2;\nret;"))
    with pytest.raises(sim.UnsupportedInstruction, match="frobnicate"):
        module.launch("k", grid=1, block=1)


def test_constants_cannot_be_written(gpu):
    module = gpu.load_ptx(
        HEADER.format(target="sm_90")
        + """
.const .align 4 .b8 table[8] = {1, 2, 3};
.visible .entry k()
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<3>;
	mov.u64 %rd1, table;
	cvta.const.u64 %rd2, %rd1;
	ld.global.u32 %r1, [%rd2];
	st.global.u32 [%rd2+4], %r1;
	ret;
}
"""
    )
    with pytest.raises(sim.Fault, match="table, lent read-only"):
        module.launch("k", grid=1, block=1)
    assert module.variables["table"].numpy().tolist() == [1, 2, 3, 0, 0, 0, 0, 0]
