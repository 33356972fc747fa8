"""`cakert inspect` against cuobjdump, nvdisasm and c++filt: every field, and how many of each.

Each test counts what it compared and what of it was not the field's empty value, so that nothing
agrees by comparing nothing.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from helpers import cuda_tools
from helpers.cuda_tools import find, output

from cakert.cubins import store
from cakert.inspect import CubinRecord, KernelRecord, as_json, inspect_file

pytestmark = [
    pytest.mark.skipif(find(tool) is None, reason=f"no {tool} (extra test-base brings it)")
    for tool in ("cuobjdump", "nvdisasm")
]

DATA = Path(__file__).with_name("data")
EMPTY = (None, 0, "", (), [], False)


def expected_cubin(image: cuda_tools.Image) -> dict[str, object]:
    """The fields of a `CubinRecord` that cuobjdump prints; `kernels` apart."""
    header = image.header
    return {
        "flags": int(header["flags"], 16),
        "abi_version": int(header["ABI"]),
        "relocatable": header["type"] == "ET_REL",
        "global_bytes": image.common["GLOBAL"],
        "constant_banks": banks(image.common),
        # The suffix "f" is not printed.
        "target": f"sm_{header['sm']}",
        "toolkit": header["toolkit"],
    }


def banks(numbers: dict[str, int]) -> list[dict[str, int]]:
    found = {int(key[9:-1]): value for key, value in numbers.items() if key.startswith("CONSTANT[")}
    return [{"bank": bank, "size": size} for bank, size in sorted(found.items())]


def dimensions(text: str | None) -> list[int] | None:
    return None if text is None else [int(word, 16) for word in text.split()]


def number(text: str | None, default: int | None = None) -> int | None:
    return default if text is None else int(text, 16)


def expected_kernel(image: cuda_tools.Image, name: str) -> dict[str, object]:
    """The fields of a `KernelRecord` that cuobjdump prints."""
    usage = image.usage[name]
    values = [*image.values(name, "KPARAM_INFO"), *image.values(name, "KPARAM_INFO_V2")]
    parameters = [
        {key: int(word, 16) for key, word in re.findall(r"(Ordinal|Offset|Size)\s*: 0x(\w+)", text)}
        for text in values
    ]
    parameters.sort(key=lambda parameter: parameter["Ordinal"])
    bank = image.value(name, "PARAM_CBANK")
    frames = [
        int(found[2], 16)
        for _, text in image.attributes[".nv.info"]
        if (found := re.match(r"function: (.+)\(0x\w+\)\s+frame size: 0x(\w+)", text))
        and found[1] == name
    ]
    relocations = 0
    for section in (f".rel.text.{name}", f".rela.text.{name}"):
        size, entry, _ = image.sections.get(section, (0, 1, 0))
        relocations += size // entry
    rank = image.value(name, "MAX_CLUSTER_RANK")
    kinds = {attribute for attribute, _ in image.attributes[f".nv.info.{name}"]}
    return {
        "name": name,
        "parameters": [{key.lower(): value for key, value in p.items()} for p in parameters],
        "parameter_bytes": number(image.value(name, "CBANK_PARAM_SIZE"), 0),
        "parameter_base": None if bank is None else int(bank.split()[1], 16) & 0xFFFF,
        "registers": usage["REG"],
        "max_registers": number(image.value(name, "MAXREG_COUNT")),
        "shared_bytes": usage["SHARED"],
        "local_bytes": usage["LOCAL"],
        "frame_bytes": frames[0] if frames else None,
        # UNKNOWN is no number. Without the attribute (code to be linked) 0 is printed.
        "stack_bytes": usage.get("STACK"),
        "barriers": number(image.value(name, "NUM_BARRIERS"), 0),
        "max_threads": dimensions(image.value(name, "MAX_THREADS")),
        "required_threads": dimensions(image.value(name, "REQNTID")),
        "cluster": dimensions(image.value(name, "CTA_PER_CLUSTER")),
        "max_cluster": None if rank is None else number(rank.strip()),
        "constant_banks": banks(usage),
        "relocations": relocations,
        "code_bytes": image.sections[f".text.{name}"][0],
        "tcgen05": [n for n in (1, 2) if f"EIATTR_TCGEN05_{n}CTA_USED" in kinds],
    }


class Tally:
    """Compared fields, and those of them that were not empty."""

    def __init__(self) -> None:
        self.compared: Counter[str] = Counter()
        self.filled: Counter[str] = Counter()

    def check(self, where: str, field: str, actual: object, expected: object) -> None:
        assert actual == expected, f"{where}: {field}: {actual!r}, expected {expected!r}"
        self.compared[field] += 1
        self.filled[field] += actual not in EMPTY


def compare_cubin(tally: Tally, where: str, cubin: dict, image: cuda_tools.Image) -> None:
    expected = expected_cubin(image)
    tally.check(where, "target", cubin["target"].rstrip("f"), expected.pop("target"))
    release = re.search(r"release ([\d.]+)", cubin["toolkit"])
    tally.check(where, "toolkit", release[1], expected.pop("toolkit"))
    for field, value in expected.items():
        tally.check(where, field, cubin[field], value)
    device_functions = image.usage.keys() - {kernel["name"] for kernel in cubin["kernels"]}
    for name in device_functions:  # only kernels have a parameter bank
        assert f".nv.constant0.{name}" not in image.sections, f"{where}: {name}"
    for kernel in cubin["kernels"]:
        expected = expected_kernel(image, kernel["name"])
        if kernel["stack_bytes"] is None and cubin["relocatable"]:
            assert expected["stack_bytes"] == 0
            expected["stack_bytes"] = None
        for field, value in expected.items():
            tally.check(f"{where}: {kernel['name']}", field, kernel[field], value)


def compare_with_nvdisasm(tally: Tally, path, cubin: dict) -> None:
    text = cuda_tools.disassemble(path)
    tally.check(path.name, "target", cubin["target"].rstrip("f"), text.target.rstrip("f"))
    tally.check(path.name, "relocatable", cubin["relocatable"], text.elf_type == "ET_REL")
    tally.check(path.name, "kernels", {k["name"] for k in cubin["kernels"]}, text.entries)


def cubins_of(path) -> list[dict]:
    """As `--json` gives them, after a round through JSON."""
    (file,) = json.loads(json.dumps(as_json([inspect_file(path)])))["files"]
    found = [file["cubin"]] if file["cubin"] else []
    return found + [e["cubin"] for f in file["fatbins"] for e in f["entries"] if e["cubin"]]


def assert_every_field_was_compared(tally: Tally) -> None:
    kernel = {field.name for field in dataclasses.fields(KernelRecord)}
    cubin = {field.name for field in dataclasses.fields(CubinRecord)}
    # Sizes and C++ names have tests of their own.
    assert kernel | cubin == tally.compared.keys() | {"demangled", "size", "kernels"}


def test_shipped_cubins():
    tally = Tally()
    for entry in store().entries:
        path = store().root / entry.file
        (cubin,) = cubins_of(path)
        (image,) = cuda_tools.cuobjdump_images(path)
        compare_cubin(tally, entry.file, cubin, image)
        assert cubin["size"] == path.stat().st_size
        assert cubin["target"] == entry.target
        (kernel,) = cubin["kernels"]
        assert kernel["registers"] == entry.kernels[0].registers
        assert kernel["stack_bytes"] == entry.kernels[0].stack_bytes
    assert_every_field_was_compared(tally)
    assert tally.compared["name"] >= 56
    for field in ("registers", "shared_bytes", "parameters", "parameter_base", "code_bytes"):
        assert tally.filled[field] >= 56, field


def test_cubins_of_triton(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    import triton_kernels

    tally = Tally()
    for capability in (80, 90, 100, 103, 120):
        for name, data in triton_kernels.cubins(capability).items():
            path = tmp_path / f"{name}_{capability}.cubin"
            path.write_bytes(data)
            (cubin,) = cubins_of(path)
            (image,) = cuda_tools.cuobjdump_images(path)
            (kernel,) = cubin["kernels"]
            if cubin["abi_version"] == 7:
                kernel["barriers"] = 0  # see below
            compare_cubin(tally, path.name, cubin, image)
            assert kernel["name"] == name
            assert kernel["required_threads"] == [128, 1, 1]
            assert (kernel["tcgen05"] == [1]) == (name == "matmul" and capability in (100, 103))
    assert tally.compared["name"] == tally.filled["parameters"] == 10


def test_cubins_of_abi_7():
    """Barriers are not compared: cuobjdump prints none in ABI 7; nvdisasm does."""
    tally = Tally()
    for path in sorted(DATA.glob("abi7_*.cubin")):
        (cubin,) = cubins_of(path)
        (image,) = cuda_tools.cuobjdump_images(path)
        text = output(find("nvdisasm"), path)
        barriers = re.findall(r"SHF_BARRIERS=(\d+)", text)
        assert [kernel["barriers"] for kernel in cubin["kernels"]] == [*map(int, barriers)]
        assert len(barriers) == 2
        for kernel in cubin["kernels"]:
            kernel["barriers"] = 0
        compare_cubin(tally, path.name, cubin, image)
    assert_every_field_was_compared(tally)
    assert tally.compared["name"] == 6
    for field in ("registers", "shared_bytes", "stack_bytes", "max_threads", "parameters"):
        assert tally.filled[field] == 6, field


def test_shipped_cubins_with_nvdisasm():
    tally = Tally()
    for target in sorted({entry.target for entry in store().entries}):
        for entry in [e for e in store().entries if e.target == target][:3]:
            path = store().root / entry.file
            compare_with_nvdisasm(tally, path, cubins_of(path)[0])
    assert tally.compared["kernels"] >= 9
    assert tally.filled["kernels"] == tally.compared["kernels"]


def test_built_cubins(built):
    tally = Tally()
    for name, path in built.items():
        if not name.endswith(".cubin"):
            continue
        (cubin,) = cubins_of(path)
        (image,) = cuda_tools.cuobjdump_images(path)
        compare_cubin(tally, name, cubin, image)
        compare_with_nvdisasm(tally, path, cubin)
        assert cubin["size"] == path.stat().st_size
    assert_every_field_was_compared(tally)
    assert tally.compared["name"] >= 120
    never = tally.compared.keys() - {field for field, count in tally.filled.items() if count}
    # ptxas of 13.0 gives stack to what older ones put into .nv.local.
    assert never <= {"local_bytes"}
    for field in ("frame_bytes", "stack_bytes", "barriers", "max_threads", "constant_banks"):
        assert tally.filled[field] >= 20, field
    for field in ("required_threads", "cluster", "max_cluster", "relocations", "tcgen05"):
        assert tally.filled[field] >= 2, field


def test_containers(built):
    tally = Tally()
    for name, path in built.items():
        if name.endswith(".cubin"):
            continue
        cubins = cubins_of(path)
        images = cuda_tools.cuobjdump_images(path)
        if name == "program.so":  # cuobjdump prints a host file's sections in an order of its own
            cubins.sort(key=lambda cubin: (cubin["flags"], cubin["relocatable"], cubin["size"]))
            images.sort(key=sorting_key)
        assert len(cubins) == len(images), name
        for index, (cubin, image) in enumerate(zip(cubins, images, strict=True)):
            compare_cubin(tally, f"{name}[{index}]", cubin, image)
    assert tally.compared["target"] >= 25
    assert tally.compared["name"] >= 350


def sorting_key(image: cuda_tools.Image) -> tuple[int, bool, int]:
    size = sum(size for size, _, _ in image.sections.values())
    return int(image.header["flags"], 16), image.header["type"] == "ET_REL", size


@pytest.mark.parametrize(
    "name",
    [
        "default.fatbin",
        "size.fatbin",
        "speed.fatbin",
        "none.fatbin",
        "host.o",
        "linkable.o",
        "archive.a",
    ],
)
def test_images_are_those_that_cuobjdump_extracts(built, tmp_path, name):
    """Size after decompression, architecture and kind, from the files that cuobjdump writes."""
    subprocess.run(
        [find("cuobjdump"), "-xelf", "all", "-xptx", "all", built[name]],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    entries = [entry for fatbin in inspect_file(built[name]).fatbins for entry in fatbin.entries]
    printed = output(find("cuobjdump"), "-all", "-elf", "-ptx", built[name])
    archs = Counter(re.findall(r"^arch = sm_(\w+)$", printed, re.MULTILINE))
    assert Counter(entry.arch.partition("_")[2] for entry in entries) == archs
    for kind, suffix in (("elf", "cubin"), ("ptx", "ptx")):
        ours = sorted(entry.size for entry in entries if entry.kind == kind)
        texts = [path.read_bytes().rstrip(b"\0") for path in tmp_path.glob(f"*.{suffix}")]
        if kind == "elf":
            texts = [path.read_bytes() for path in tmp_path.glob("*.cubin")]
        assert ours == sorted(map(len, texts)), kind
        files = 2 if name == "archive.a" else 1
        assert len(ours) == (3 if kind == "elf" else 1) * files


def test_compression_is_the_one_asked_for(built):
    methods = {
        name: {entry.compression for f in inspect_file(built[name]).fatbins for entry in f.entries}
        for name in ("size.fatbin", "speed.fatbin", "none.fatbin")
    }
    assert methods["size.fatbin"] == {"zstd"}
    assert "lz4" in methods["speed.fatbin"]
    assert methods["none.fatbin"] == {"none"}


def test_names_are_those_of_cxxfilt(built):
    pytest.importorskip("demangle")
    tool = shutil.which("c++filt")
    if tool is None:
        pytest.skip("no c++filt on PATH")
    kernels = inspect_file(built["sm_90a.cubin"]).cubin.kernels
    names = "\n".join(kernel.name for kernel in kernels)
    done = subprocess.run([tool], input=names, capture_output=True, text=True, check=True)
    assert [kernel.demangled for kernel in kernels] == done.stdout.splitlines()
    assert sum(kernel.demangled != kernel.name for kernel in kernels) >= 14
