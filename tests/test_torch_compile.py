"""F68: a run under torch.compile is a graph break, and gives what it gives without."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cakert import plan_cake_vsa, run_cake_vsa, sim  # noqa: E402


@pytest.fixture
def case():
    """A plan on a simulated device, a layer that runs it once, and its arguments."""
    torch._dynamo.reset()
    mask = torch.rand(2, 2, 3) < 0.5
    mask[..., 1] = True
    with sim.device("sm_100a") as device:
        plan = plan_cake_vsa(
            None, None, mask, None, None, None, M=128, N=192, R=64, C=64, num_qo_heads=2,
            num_kv_heads=2, head_dim=64, q_data_type=torch.bfloat16, sm_scale=None, device=device,
        )  # fmt: skip

        def layer(q, k, v):
            out = run_cake_vsa(
                plan, q * 2, k, v, out=None, lse=None, return_lse=False, backend="cake"
            )
            return out + 1

        q, k, v = (torch.randn(n, 2, 64, dtype=torch.bfloat16) for n in (128, 192, 192))
        yield layer, (q, k, v)
    torch._dynamo.reset()


def test_compiled_and_eager_give_the_same(case):
    from torch._dynamo.testing import CompileCounter

    layer, tensors = case
    want = layer(*tensors)
    assert want.float().std() > 0.1
    counter = CompileCounter()
    compiled = torch.compile(layer, backend=counter)
    assert torch.equal(compiled(*tensors), want)
    compiled_once = counter.frame_count
    assert compiled_once >= 2  # before the run and behind it
    assert torch.equal(compiled(*tensors), want)
    assert counter.frame_count == compiled_once


def test_the_run_is_a_graph_break(case):
    layer, tensors = case
    found = torch._dynamo.explain(layer)(*tensors)
    assert found.graph_break_count >= 1
    assert any("VsaCall" in str(each.reason) for each in found.break_reasons)


def test_a_whole_graph_is_refused(case):
    layer, tensors = case
    with pytest.raises(torch._dynamo.exc.Unsupported, match="VsaCall"):
        torch.compile(layer, backend="eager", fullgraph=True)(*tensors)


def test_the_docs_say_so(project):
    for page in ("contract.md", "changing-masks.md"):
        assert "graph break" in (project / "docs" / page).read_text()
