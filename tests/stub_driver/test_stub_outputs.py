"""Outputs and the other arguments of a run: read-only, overlapping, missing, released."""

from __future__ import annotations

import pytest
from tensor_scripts import launched_addresses, run_script, words


def test_read_only_inputs_are_fine_and_read_only_outputs_are_not():
    """F55."""
    result = run_script(
        """
        p = Problem()
        plan = p.plan()
        inputs = p.tensors(readonly=True)
        out, lse = p.tensors("out", "lse")
        run(plan, *inputs, out=out, lse=lse, return_lse=True)
        locked_out, locked_lse = p.tensors("out", "lse", readonly=True)
        report([
            failure(lambda: run(plan, *inputs, out=locked_out)),
            failure(lambda: run(plan, *inputs, out=out, lse=locked_lse, return_lse=True)),
            [[t.exports, t.releases] for t in (*inputs, out, lse, locked_out, locked_lse)],
        ])
        """
    )
    *errors, counts = result.report
    for name, error in zip(("out", "lse"), errors, strict=True):
        assert error["type"] == "ValueError" and name in error["text"]
        assert "read-only" in error["text"] or "readonly" in error["text"]
    assert all(exports == releases for exports, releases in counts)
    assert len(launched_addresses(result)) == 1


@pytest.mark.parametrize(
    ("out", "lse", "says"),
    [
        ("FakeCuda(q.array)", "None", "q"),
        ("FakeCuda(k.array[:256])", "None", "k"),
        ("inside(v)", "None", "v"),
        ("inside(k)", "None", "k"),
        ("o", "over(q)", "q"),
        ("o", "over(k)", "k"),
        ("o", "over(v)", "v"),
        ("o", "over(o)", "out"),
    ],
)
def test_overlapping_outputs_are_refused(out, lse, says):
    """F61."""
    result = run_script(
        f"""
        p = Problem(q_heads=2)
        plan = p.plan()
        q, k, v, o = p.tensors("q", "k", "v", "out")
        def inside(tensor):
            # Begins in the tensor's last 16 bytes and goes on behind them.
            size = int(np.prod(p.shapes()["out"])) * 2
            whole = aligned((len(tensor.array.tobytes()) + size,), np.uint8)
            return whole, size
        def over(tensor):
            count = int(np.prod(p.shapes()["lse"]))
            return FakeCuda(tensor.array.reshape(-1).view(np.float32)[-count:]
                            .reshape(p.shapes()["lse"]))
        tensors = dict(q=q, k=k, v=v)
        out, lse = {out}, {lse}
        if isinstance(out, tuple):
            whole, size = out
            used = len(whole) - size
            tensors[{says!r}] = FakeCuda(whole[:used].view(p.element)
                                         .reshape(p.shapes()[{says!r}]))
            out = FakeCuda(whole[used - 16 : used - 16 + size].view(p.element)
                           .reshape(p.shapes()["out"]))
        error = failure(lambda: run(plan, **tensors, out=out, lse=lse, return_lse=lse is not None))
        report([error, [[t.exports, t.releases] for t in (*tensors.values(), out)]])
        """
    )
    error, counts = result.report
    written = "out" if lse == "None" else "lse"
    assert error["type"] == "ValueError" and "overlap" in error["text"], error
    assert {written, says} <= words(error["text"])
    assert all(exports == releases for exports, releases in counts)
    assert not launched_addresses(result)


def test_neighbours_that_touch_do_not_overlap():
    result = run_script(
        """
        p = Problem(M=128, N=128, q_heads=2)
        plan = p.plan(block_mask=np.ones((2, 2, 2), bool))
        count = 128 * 2 * 128
        memory = aligned((4 * count + 2 * 256,), p.element)
        parts = [FakeCuda(memory[i * count:][:count].reshape(128, 2, 128)) for i in range(4)]
        lse = FakeCuda(memory[4 * count:].view(np.float32).reshape(128, 2))
        run(plan, *parts[:3], out=parts[3], lse=lse, return_lse=True)
        run(plan, parts[0], parts[0], parts[0], out=parts[1])      # inputs may be one tensor
        """
    )
    assert len(launched_addresses(result)) == 2


def test_arguments_of_run():
    cases = {
        "lse=lse": ("ValueError", "return_lse"),
        "backend='cudnn'": ("ValueError", "cudnn"),
        "backend=None": ("ValueError", "cake"),
        "out=5": ("TypeError", "out"),
        "out='here'": ("TypeError", "out"),
        "q=[1.0]": ("TypeError", "q"),
        "v=None": ("TypeError", "v"),
        "q=FakeCuda": ("TypeError", "q"),
    }
    result = run_script(
        f"""
        p = Problem()
        plan = p.plan()
        tensors = dict(zip(("q", "k", "v"), p.tensors()))
        out, lse = p.tensors("out", "lse")
        calls = [{", ".join(f"dict({arguments})" for arguments in cases)}]
        errors = [failure(lambda: run(plan, **(tensors | call))) for call in calls]
        report([errors, [[t.exports, t.releases] for t in (*tensors.values(), out, lse)]])
        """
    )
    errors, counts = result.report
    for (arguments, (kind, says)), error in zip(cases.items(), errors, strict=True):
        assert error["type"] == kind and says in words(error["text"]), (arguments, error)
    assert all(exports == releases for exports, releases in counts)
    assert not launched_addresses(result)


def test_a_plan_must_be_a_plan():
    result = run_script(
        """
        p = Problem()
        plan = p.plan()
        tensors = p.tensors()
        import copy, pickle
        report([failure(lambda: run(other, *tensors))["type"] for other in ({}, dict(plan), None)]
               + [failure(lambda: copy.deepcopy(plan))["type"],
                  failure(lambda: pickle.dumps(plan))["type"]])
        """
    )
    assert result.report == ["TypeError"] * 5
    assert not launched_addresses(result)


def test_ten_thousand_runs_release_every_tensor():
    """F53: exactly once for each import, and memory stays flat."""
    result = run_script(
        """
        import tracemalloc
        from helpers import fake_tensor
        p = Problem(M=64, N=64, q_heads=1, kv_heads=1, head_dim=64)
        plan = p.plan(block_mask=np.ones((1, 1, 1), bool))
        arrays = [p.array(name) for name in ("q", "k", "v", "out")]
        exports = releases = 0
        def many(count):
            global exports, releases
            for n in range(count):
                tensors = [FakeCuda(a, versioned=n % 2 == 0) for a in arrays]
                q, k, v, out = tensors
                run(plan, q, k, v, out=out)
                exports += sum(t.exports for t in tensors)
                releases += sum(t.releases for t in tensors)
        many(200)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        many(9800)
        gc.collect()
        report([exports, releases, tracemalloc.get_traced_memory()[0] - before,
                len(fake_tensor._lent)])
        """,
        env={"STUB_CUDA_TRACE": ""},
        timeout=120,
    )
    exports, releases, grown, lent = result.report
    assert exports == releases >= 40000 and lent == 0
    assert grown < 64 * 1024


def test_gradients_are_refused_while_grad_is_enabled():
    """F56."""
    pytest.importorskip("torch")
    result = run_script(
        """
        import torch
        p = Problem()
        plan = p.plan()
        q, k, v, out = p.tensors("q", "k", "v", "out")
        for tensor in (q, k, v, out):
            tensor.requires_grad = False
        errors = []
        for tensor in (q, k, v, out):
            tensor.requires_grad = True
            errors.append(failure(lambda: run(plan, q, k, v, out=out)))
            with torch.no_grad():
                run(plan, q, k, v, out=out)
            tensor.requires_grad = False
        report(errors)
        """
    )
    for name, error in zip(("q", "k", "v", "out"), result.report, strict=True):
        assert error["type"] == "RuntimeError"
        assert error["text"].startswith(f"{name} requires grad") and "forward only" in error["text"]
    assert len(launched_addresses(result)) == 4
