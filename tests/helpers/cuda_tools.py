"""NVIDIA's command-line tools, where they are installed: finding them, reading their text."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "inspect"
ARCHITECTURES = ("75", "80", "90a", "100a", "103a", "120f")


@functools.cache
def find(tool: str) -> str | None:
    """From PATH, or from the wheels of PyPI (folder ``nvidia/cu13/bin``)."""
    wheels = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    return shutil.which(tool) or shutil.which(tool, path=str(wheels))


def output(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def why_no_compiler() -> str:
    """The reason to skip tests that compile; empty where they can run."""
    for tool in ("nvcc", "ptxas"):
        if find(tool) is None:
            return f"no {tool} on PATH"
    release = re.search(r"release (\d+)", output(find("nvcc"), "--version"))
    if release is None or int(release[1]) < 13:
        return "nvcc is older than 13"
    return ""


def build_all(folder: Path) -> dict[str, Path]:
    """Everything that the tests of `cakert inspect` want compiled, by file name."""
    source = SOURCES / "kernels.cu"
    nvcc = [find("nvcc"), "-w", "-Wno-deprecated-gpu-targets", "-Xnvlink", "-w"]
    several = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ("80", "90a", "100f")]
    several.append("-gencode=arch=compute_90,code=compute_90")
    commands: dict[str, list[object]] = {}
    for arch in ARCHITECTURES:
        commands[f"sm_{arch}.cubin"] = [*nvcc, f"-arch=sm_{arch}", "-cubin", source]
    for arch in ("80", "90"):
        commands[f"linkable_{arch}.cubin"] = [
            *nvcc, f"-arch=sm_{arch}", "-rdc=true", "-cubin", source,
        ]  # fmt: skip
    commands["tensor_memory.cubin"] = [
        find("ptxas"), "-arch=sm_100a", SOURCES / "tensor_memory.ptx",
    ]  # fmt: skip
    for mode in ("default", "size", "speed", "none"):
        commands[f"{mode}.fatbin"] = [*nvcc, *several, "-fatbin", f"-compress-mode={mode}", source]
    host = [*nvcc, *several, "-Xcompiler", "-fPIC", "-c"]
    commands["host.o"] = [*host, source]
    commands["linkable.o"] = [*host, "-rdc=true", source]
    paths = {}
    for name, command in commands.items():
        paths[name] = folder / name
        output(*command, "-o", paths[name])
    # Several fatbins in one section, and both kinds of section.
    paths["program.so"] = folder / "program.so"
    output(*nvcc, "-arch=sm_80", "-shared", paths["host.o"], paths["linkable.o"],
           "-Xlinker", "-z,muldefs", "-o", paths["program.so"])  # fmt: skip
    paths["archive.a"] = folder / "archive.a"
    output("ar", "rcs", paths["archive.a"], paths["host.o"], paths["linkable.o"])
    return paths


@dataclass
class Image:
    """What cuobjdump says about one cubin."""

    header: dict[str, str]
    sections: dict[str, tuple[int, int, int]] = field(
        default_factory=dict
    )  # size, entry size, info
    attributes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    common: dict[str, int] = field(default_factory=dict)
    usage: dict[str, dict[str, int]] = field(default_factory=dict)

    def value(self, kernel: str, name: str) -> str | None:
        """The value of a kernel's attribute, None where it has none."""
        values = self.values(kernel, name)
        return values[0] if values else None

    def values(self, kernel: str, name: str) -> list[str]:
        found = self.attributes.get(f".nv.info.{kernel}", [])
        return [value for attribute, value in found if attribute == f"EIATTR_{name}"]


_SECTION = re.compile(
    r"^ +([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]+) +([0-9a-f]+) +[0-9a-f]+ +\S+ +[0-9a-f]+ +[0-9a-f]+ +"
    r"([0-9a-f]+) (\S+)$"
)


def read_header(line: str) -> dict[str, str]:
    """The fields of a cubin's first line; those of ABI 7 in the names and spelling of ABI 8."""
    fields = dict(re.findall(r"(\w+) ?= ?([^,\s]+)", line))
    if line.startswith("64bit elf:"):
        fields["ABI"] = fields.pop("abi")
        fields["type"] = {"1": "ET_REL", "2": "ET_EXEC"}[fields["type"]]
        fields["toolkit"] = f"{fields['toolkit'][:-1]}.{fields['toolkit'][-1]}"
    return fields


def cuobjdump_images(path: Path) -> list[Image]:
    """Every cubin of a file in order, from the text of ``-elf`` and ``-res-usage``."""
    tool = find("cuobjdump")
    images = []
    section = attribute = ""
    for line in output(tool, "-all", "-elf", path).splitlines():
        if line.startswith(("64-bit ELF:", "64bit elf:")):
            images.append(Image(read_header(line)))
        elif images and (found := _SECTION.match(line)):
            _, size, entry, info, name = found.groups()
            images[-1].sections[name] = (int(size, 16), int(entry, 16), int(info, 16))
        elif line.startswith(".nv.info"):
            section = line.strip()
            images[-1].attributes[section] = []
        elif line.strip() and not line.startswith("\t"):
            section = ""  # a blank line may stand between two attributes
        elif section and line.startswith("\tAttribute:"):
            attribute = line.split(":", 1)[1].strip()
            images[-1].attributes[section].append((attribute, ""))
        elif section and line.startswith("\tValue:"):
            images[-1].attributes[section][-1] = (attribute, line.split(":", 1)[1].strip())
    blocks = output(tool, "-all", "-res-usage", path).split("Resource usage:")[1:]
    assert len(blocks) == len(images), path.name
    for image, block in zip(images, blocks, strict=True):
        name = ""
        for line in block.splitlines():
            numbers = {key: int(value) for key, value in re.findall(r"([A-Z\[\]\d]+):(\d+)", line)}
            if found := re.match(r" Function (.+):$", line):
                name = found[1]
            elif numbers and name:
                image.usage[name] = numbers
            elif numbers:
                image.common = numbers
    return images


@dataclass
class Disassembly:
    """What nvdisasm says about one cubin."""

    target: str
    elf_type: str
    entries: set[str]


def disassemble(path: Path) -> Disassembly:
    text = output(find("nvdisasm"), path)
    entries = re.findall(r"^\s+\.other\s+(\S+),@\"STO_CUDA_ENTRY", text, re.MULTILINE)
    return Disassembly(
        target=re.search(r"^\s*\.target\s+(\S+)", text, re.MULTILINE)[1],
        elf_type=re.search(r"^\s*\.elftype\s+@\"(\w+)\"", text, re.MULTILINE)[1],
        entries=set(entries),
    )
