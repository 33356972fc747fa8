"""Pictures of explanations."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from helpers.explanations import plan_of, random_mask

import cakert
from cakert import sim, update_cake_vsa

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def explanation():
    rng = np.random.default_rng()
    with sim.device("sm_90a", sms=132) as device:
        return cakert.explain(plan_of(device, random_mask(rng, 9, 40, 50)))


def test_svg_is_a_picture_and_always_the_same(explanation, tmp_path):
    pytest.importorskip("matplotlib")
    explanation.draw(tmp_path / "a.svg")
    explanation.draw(str(tmp_path / "b.svg"))
    text = (tmp_path / "a.svg").read_bytes()
    assert text == (tmp_path / "b.svg").read_bytes()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(text) < 400_000
    assert b"dc:date" not in text


@pytest.mark.parametrize("kind", ["one cell", "many heads", "no rates", "empty"])
def test_every_kind_of_explanation_can_be_drawn(kind, rng, tmp_path):
    pytest.importorskip("matplotlib")
    arch = "sm_103a" if kind == "many heads" else "sm_90a"
    with sim.device(arch, sms=5 if kind == "no rates" else None) as device:
        shape = {"one cell": (1, 1, 1), "many heads": (70, 3, 5)}.get(kind, (3, 5, 20))
        p = plan_of(device, random_mask(rng, *shape))
        if kind == "empty":
            update_cake_vsa(p, block_mask=np.zeros(shape, bool))
        cakert.explain(p).draw(tmp_path / "picture.PNG")
    data = (tmp_path / "picture.PNG").read_bytes()
    assert data.startswith(PNG)
    assert data.endswith(b"IEND\xaeB`\x82")


def test_other_suffixes(explanation, tmp_path):
    for name in ("picture.pdf", "picture", ".svg"):
        with pytest.raises(ValueError, match=r"must end in \.svg or \.png"):
            explanation.draw(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_there_is_a_sentence(explanation, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'cakert\[explain\]'"):
        explanation.draw(tmp_path / "a.svg")


def test_explaining_needs_no_matplotlib():
    script = """
import sys, numpy as np
from cakert import explain, plan_cake_vsa, sim
with sim.device("sm_90a") as device:
    plan = plan_cake_vsa(None, None, np.ones((1, 2, 3), bool), None, None, None, M=128, N=192,
                         R=64, C=64, num_qo_heads=1, num_kv_heads=1, head_dim=64,
                         q_data_type="float16", sm_scale=None, device=device)
    print(explain(plan))
print("matplotlib" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("\nFalse\n")
    assert "measured with bfloat16" in done.stdout
