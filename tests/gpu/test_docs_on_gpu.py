"""Every Python block of README.md and docs/ as it stands, on a GPU."""

from __future__ import annotations

import contextlib
import io

import pytest

torch = pytest.importorskip("torch")

import make_shots  # noqa: E402
from helpers.doc_blocks import python_blocks  # noqa: E402

import cakert  # noqa: E402

PAGES = python_blocks()


def small_plan() -> dict[str, object]:
    """A plan with a mask on the current GPU."""
    shape = dict.fromkeys(("M", "N"), 256) | dict.fromkeys(("R", "C"), 64)
    options = {"head_dim": 64, "q_data_type": "float16", "sm_scale": None, "device": "cuda"}
    mask = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    return cakert.plan_cake_vsa(
        None, None, mask, None, None, None, **shape, num_qo_heads=1, num_kv_heads=1, **options
    )


# Names that a page leaves to its reader.
GIVEN = {
    ("README.md", 2): {"x": lambda: torch.arange(1000, dtype=torch.float32, device="cuda")},
    ("explain.md", 1): {"cakert": lambda: cakert, "plan": small_plan},
}


@pytest.mark.gpu
@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page(page, tmp_path, monkeypatch):
    make_shots.stage(tmp_path)
    monkeypatch.chdir(tmp_path)
    if any('Library("scale.cubin")' in block.text for block in PAGES[page]):
        capability = torch.cuda.get_device_capability()
        if capability[0] != 9:
            pytest.skip(f"scale.cubin is for 9.x, this GPU is {capability[0]}.{capability[1]}")
    names: dict[str, object] = {}
    for block in PAGES[page]:
        names |= {name: make() for name, make in GIVEN.get(block.key, {}).items()}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            block.run(names)
        torch.cuda.synchronize()
        if block.output is not None:
            assert printed.getvalue() == block.output, block.key


@pytest.mark.gpu
def test_the_kernel_of_the_readme_scales(tmp_path, monkeypatch):
    make_shots.stage(tmp_path)
    monkeypatch.chdir(tmp_path)
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("scale.cubin is for 9.x")
    block = PAGES["README.md"][1]
    names = {name: make() for name, make in GIVEN[block.key].items()}
    block.run(names)
    assert torch.equal(names["x"].cpu(), 2 * torch.arange(1000, dtype=torch.float32))
