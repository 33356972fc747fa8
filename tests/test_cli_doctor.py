"""`cakert doctor`: every case of its table is provoked, and what it prints and returns."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.stub import run_with_stub

import cakert
from cakert import verification
from cakert.cli import checks_driver, checks_install, surroundings
from cakert.cli.cases import CASES, LEVELS
from cakert.cli.checks import CHECKS, run_checks, what_works, worst
from cakert.cli.main import main
from cakert.cli.surroundings import DriverState, Gpu, Interpreter, Surroundings
from cakert.cubins import store
from cakert.errors import MINIMUM_CUDA, MINIMUM_DRIVER

PACKAGE = Path(cakert.__file__).resolve().parent
verify_once = functools.cache(verification.verify)
MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  "
    "(builder@host)  Sun Jul 27 07:00:00 UTC 2025\nGCC version:  gcc version 12.3.0\n"
)
H200 = Gpu(0, "NVIDIA H200", (9, 0), 132, 0, 140 << 30, 141 << 30)


@pytest.fixture(autouse=True)
def _each_store_once(monkeypatch):
    """Most tests here look at the same shipped cubins."""
    monkeypatch.setattr(verification, "verify", verify_once)


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def healthy(folder: Path) -> Surroundings:
    """A machine with one H200 on which everything is well; its file system is `folder`/root."""
    root = folder / "root"
    write(root / "proc/driver/nvidia/version", MODULE)
    write(root / "proc/driver/nvidia/gpus/0000:01:00.0/information")
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        write(root / "dev" / name)
    real = write(root / "usr/lib/libcuda.so.580.65.06")
    library = root / "usr/lib/libcuda.so.1"
    if not library.exists():
        library.symlink_to(real)
    return Surroundings(
        environ={"PATH": ""},
        root=root,
        import_path=(str(PACKAGE.parent),),
        interpreter=Interpreter(
            "CPython", (3, 12), "Linux", "x86_64", ".cpython-312-x86_64-linux-gnu.so", True, "spawn"
        ),
        packages={
            "cuda-bindings": "13.0.3",
            "ml-dtypes": "0.5.3",
            "numpy": "2.3.1",
            "pyelftools": "0.32",
            "rich": "14.1.0",
            "demangle": "0.6",
            "matplotlib": "3.10.0",
            "shtab": "1.7.2",
            "lz4": "4.4.4",
            "zstandard": "0.24.0",
            "nvidia-cuda-nvdisasm": "13.0.85",
        },
        package=PACKAGE,
        driver=DriverState(library=str(library), version=13000, gpus=(H200,)),
    )


Change = Callable[[Surroundings, Path], Surroundings]
PROVOKE: dict[str, Change] = {}


def provokes(case: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        assert case not in PROVOKE
        PROVOKE[case] = change
        return change

    return register


def environ(**values: str) -> Change:
    return lambda here, folder: replace(here, environ={**here.environ, **values})


def interpreter(**values: object) -> Change:
    return lambda here, folder: replace(here, interpreter=replace(here.interpreter, **values))


def installed(**values: str | None) -> Change:
    def change(here, folder):
        packages = {**here.packages, **{k.replace("_", "-"): v for k, v in values.items()}}
        return replace(here, packages={k: v for k, v in packages.items() if v is not None})

    return change


def driver(**values: object) -> Change:
    return lambda here, folder: replace(here, driver=replace(here.driver, **values))


def gpu(**values: object) -> Change:
    return driver(gpus=(replace(H200, **values),))


def fails(status: int, problem: str = "cuInit failed") -> Change:
    return driver(status=status, problem=problem, version=None, gpus=())


def both(*changes: Change) -> Change:
    def change(here, folder):
        for each in changes:
            here = each(here, folder)
        return here

    return change


def without(*paths: str) -> Change:
    def change(here, folder):
        for path in paths:
            target = here.root / path
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        return here

    return change


def file(path: str, text: str = "") -> Change:
    def change(here, folder):
        write(here.root / path, text)
        return here

    return change


NO_LIBCUDA = driver(library="", loader="libcuda.so.1: No such file or directory",
                    problem="no NVIDIA driver was found", version=None, gpus=())  # fmt: skip
NO_MODULE = without("proc/driver", "dev")
BARE = both(NO_LIBCUDA, NO_MODULE)
WSL = both(file("proc/version", "Linux version 6.6.87.2-microsoft-standard-WSL2"), NO_MODULE)
IN_CONTAINER = both(NO_LIBCUDA, file(".dockerenv"))

PROVOKE.update(
    {
        case: lambda here, folder: here
        for case, entry in CASES.items()
        if entry.level == "ok" and case != "driver-none"
    }
)
PROVOKE |= {
    "driver-none": BARE,
    "python-other": interpreter(version=(3, 15)),
    "platform-other": interpreter(system="Windows", machine="AMD64"),
    "python-without-gil": interpreter(gil=False),
    "package-missing": installed(numpy=None),
    "package-broken": lambda here, folder: replace(here, unusable={"rich": "ImportError: ..."}),
    "bindings-other": installed(cuda_bindings="12.8.0"),
    "extra-inspect": installed(zstandard=None),
    "extra-nvdisasm": installed(nvidia_cuda_nvdisasm=None),
    "extra-explain": installed(matplotlib=None),
    "extra-completion": installed(shtab=None),
    "torch-old": installed(torch="2.9.1"),
    "jax-cpu": installed(jax="0.10.2"),
    "cupy-several": installed(cupy_cuda12x="13.6.0", cupy_cuda13x="14.0.0"),
    "variable-unknown": environ(CAKERT_SEDE="7"),
    "module-loading": environ(CUDA_MODULE_LOADING="lasy"),
    "force-ptx-jit": environ(CUDA_FORCE_PTX_JIT="1"),
    "launch-blocking": environ(CUDA_LAUNCH_BLOCKING="1"),
    "fork-default": interpreter(start_method="fork"),
    "libcuda-missing": BARE,
    "libcuda-missing-gpu": both(
        BARE,
        file("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
        file("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
    ),
    "libcuda-broken": both(NO_LIBCUDA, driver(loader="/usr/lib/libcuda.so.1: file too short")),
    "libcuda-stub": fails(34),
    "wsl-missing": both(NO_LIBCUDA, WSL),
    "wsl-shadowed": WSL,
    "container-no-gpu": IN_CONTAINER,
    "container-void": both(IN_CONTAINER, environ(NVIDIA_VISIBLE_DEVICES="void")),
    "container-capabilities": both(
        NO_LIBCUDA,
        environ(NVIDIA_VISIBLE_DEVICES="all", NVIDIA_DRIVER_CAPABILITIES="utility,video"),
    ),
    "module-missing": both(NO_MODULE, fails(999)),
    "device-files-missing": both(without("dev"), fails(100)),
    "uvm-missing": both(without("dev/nvidia-uvm"), fails(999)),
    "driver-old": driver(version=12080),
    "driver-forked": driver(forked=True, problem="used before this process was forked"),
    "driver-not-ready": fails(802),
    "driver-mismatch": fails(803),
    "driver-compat": fails(804),
    "driver-failed": fails(999),
    "visible-none": environ(CUDA_VISIBLE_DEVICES="-1"),
    "visible-garbage": environ(CUDA_VISIBLE_DEVICES="0,all"),
    "visible-beyond": environ(CUDA_VISIBLE_DEVICES="0,3"),
    "devices-none": BARE,
    "devices-unseen": fails(100),
    "device-unsupported": gpu(capability=(8, 0), name="NVIDIA A100-SXM4-80GB"),
    "compute-mode-prohibited": gpu(compute_mode=2),
    "compute-mode-exclusive": gpu(compute_mode=3),
    "mig-slice": gpu(name="NVIDIA H200 MIG 1g.18gb", multiprocessors=16),
    "memory-low": gpu(free_bytes=200 << 20),
    "context-failed": gpu(status=46, problem="cuDevicePrimaryCtxRetain failed"),
}  # fmt: skip


def broken_package(here: Surroundings, folder: Path, *files: str) -> Surroundings:
    for name in files:
        write(folder / "tree" / name)
    failures = {"cakert.runtime.driver": "ImportError: cannot import name 'driver'"}
    return replace(here, package=folder / "tree" / "cakert", failures=failures)


PROVOKE["extensions-missing"] = lambda here, folder: broken_package(
    here, folder, "setup.py", "cakert/__init__.py"
)
PROVOKE["extensions-other"] = lambda here, folder: broken_package(
    here, folder, "cakert/runtime/driver.cpython-310-x86_64-linux-gnu.so"
)
PROVOKE["extensions-broken"] = lambda here, folder: broken_package(
    here, folder, "setup.py", "cakert/runtime/driver.cpython-312-x86_64-linux-gnu.so"
)
PROVOKE["extensions-need"] = lambda here, folder: replace(
    here,
    failures={"cakert.runtime.driver": "ModuleNotFoundError: No module named 'cuda.bindings'"},
)


@provokes("cuda-shadowed")
def _(here, folder):
    write(folder / "work" / "cuda" / "__init__.py")
    return replace(here, import_path=(str(folder / "work"), *here.import_path))


@provokes("cakert-twice")
def _(here, folder):
    write(folder / "other" / "cakert" / "__init__.py")
    return replace(here, import_path=(*here.import_path, str(folder / "other")))


@provokes("store-damaged")
def _(here, folder):
    write(folder / "cakert" / "cubins" / "manifest.json", "{")
    return replace(here, package=folder / "cakert")


@provokes("torch-cpu")
def _(here, folder):
    write(
        folder / "site/torch/version.py",
        "from typing import Optional\ncuda: Optional[str] = None\n",
    )
    here = installed(torch="2.13.0")(here, folder)
    return replace(here, import_path=(*here.import_path, str(folder / "site")))


@provokes("libcuda-stub-near")
def _(here, folder):
    path = write(folder / "cuda" / "lib64" / "stubs" / "libcuda.so").parent
    return environ(LD_LIBRARY_PATH=f"/nowhere:{path}")(here, folder)


@provokes("libcuda-several")
def _(here, folder):
    paths = [write(folder / name / "libcuda.so.1", name).parent for name in ("one", "two")]
    return environ(LD_LIBRARY_PATH=":".join(map(str, paths)))(here, folder)


@provokes("module-mismatch")
def _(here, folder):
    library = write(folder / "libcuda.so.575.57.08")
    return driver(library=str(library), status=803, problem="803", version=None, gpus=())(
        here, folder
    )


@provokes("module-compat")
def _(here, folder):
    return driver(library=str(write(folder / "cuda/compat/libcuda.so.590.10.01")))(here, folder)


@provokes("device-files-denied")
def _(here, folder):
    (here.root / "dev" / "nvidia0").chmod(0)
    return fails(100)(here, folder)


@provokes("store-unread")
def _(here, folder):
    return here  # the test takes what reads cubins away


def results_of(here: Surroundings, check: str):
    return CHECKS[check](here)


def test_every_case_is_provoked():
    assert PROVOKE.keys() == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_case(case, tmp_path, monkeypatch):
    if case == "store-unread":
        monkeypatch.setitem(sys.modules, "cakert.verification", None)
    if case == "device-files-denied":
        # Root may open anything, whatever the mode says.
        monkeypatch.setattr(
            os, "access", lambda path, mode: bool(Path(path).stat().st_mode & 0o600)
        )
    here = PROVOKE[case](healthy(tmp_path), tmp_path)
    found = {each.case: each for each in results_of(here, CASES[case].check)}
    assert case in found
    result = found[case]
    assert (result.check, result.level) == (CASES[case].check, CASES[case].level)
    assert result.found
    # Every brace is filled in.
    assert not re.search(r"[{}]", result.why + result.mend)
    if result.level in ("warning", "trouble"):
        assert result.why and result.mend


def test_all_is_well_on_a_healthy_machine(tmp_path):
    here = healthy(tmp_path)
    results = run_checks(here)
    assert {each.level for each in results} == {"ok"}
    assert {each.check for each in results} == CHECKS.keys()
    works = what_works(here, results)
    assert works == (("cuda:0 NVIDIA H200",), True, True)


@pytest.mark.parametrize(
    ("case", "gpu_works", "simulator"),
    [
        ("driver-old", False, True),
        ("package-missing", False, False),
        ("package-broken", False, False),
        ("extensions-need", False, False),
        ("store-damaged", False, False),
        ("compute-mode-prohibited", False, True),
        ("context-failed", False, True),
        ("device-unsupported", False, True),
        ("memory-low", True, True),
        ("torch-cpu", True, True),
        ("libcuda-missing", False, True),
    ],
)
def test_what_works(case, gpu_works, simulator, tmp_path):
    here = PROVOKE[case](healthy(tmp_path), tmp_path)
    works = what_works(here, run_checks(here))
    assert bool(works.gpu) is gpu_works
    assert works.simulator is simulator


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_nvdisasm_of_a_toolkit_is_found_where_inspect_finds_it(tmp_path, variable):
    program = tmp_path / "toolkit" / "bin" / "nvdisasm"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    here = installed(nvidia_cuda_nvdisasm=None)(healthy(tmp_path / "root"), tmp_path)
    assert [each.case for each in CHECKS["extras"](here)] == ["extra-nvdisasm"]
    here = environ(**{variable: str(tmp_path / "toolkit")})(here, tmp_path)
    assert [each.case for each in CHECKS["extras"](here)] == ["extras-ok"]


def test_a_machine_without_gpu_is_no_trouble(tmp_path):
    here = BARE(healthy(tmp_path), tmp_path)
    assert worst(run_checks(here)) == "note"
    # The same libcuda in an image that runs on a machine without a GPU.
    idle = both(NO_MODULE, fails(100))(healthy(tmp_path / "idle"), tmp_path)
    assert worst(run_checks(idle)) == "note"
    hidden = both(environ(CUDA_VISIBLE_DEVICES=""), fails(100))(healthy(tmp_path / "b"), tmp_path)
    assert worst(run_checks(hidden)) == "note"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (MODULE, "580.65.06"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Kernel Module for aarch64  1000.10  Release Build", "1000.10"),
        ("", ""),
    ],
)  # fmt: skip
def test_version_of_the_kernel_module(text, version, tmp_path):
    here = healthy(tmp_path)
    write(here.root / "proc/driver/nvidia/version", text)
    assert here.kernel_module() == version


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = '13.0'\n", "13.0"),
        ('cuda = "12.8"\nhip = None\n', "12.8"),
        ("cuda = None\n", ""),
        ("hip = '6.4'\n", None),
        (None, None),
    ],
)
def test_build_of_torch_is_read_without_importing_it(text, expected, tmp_path):
    here = replace(healthy(tmp_path), import_path=(str(tmp_path),))
    if text is not None:
        write(tmp_path / "torch" / "version.py", text)
    assert checks_install.torch_cuda(here) == expected


@pytest.mark.parametrize(
    ("value", "case"),
    [
        ("0", "visible-ok"),
        (" 0 ", "visible-ok"),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "visible-ok"),
        ("MIG-GPU-8932f937/1/0", "visible-ok"),
        ("0,-1,7", "visible-ok"),
        ("", "visible-none"),
        ("-1,0", "visible-none"),
        ("1", "visible-beyond"),
        ("cuda:0", "visible-garbage"),
        ("0;1", "visible-garbage"),
    ],
)
def test_visible_devices(value, case, tmp_path):
    here = environ(CUDA_VISIBLE_DEVICES=value)(healthy(tmp_path), tmp_path)
    assert [each.case for each in checks_driver.visible_devices(here)] == [case]


def test_libcuda_is_found_in_the_maps():
    maps = (
        "7f00-7f01 r--p 00000000 00:2f 12  /usr/lib/libc.so.6\n"
        "7f02-7f03 r-xp 00000000 00:2f 13  /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06\n"
        "7f02-7f03 r-xp 00000000 00:2f 14  /usr/lib/libcudart.so.13\n"
    )
    expected = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06"
    assert surroundings.loaded_libcuda(maps) == expected
    assert surroundings.loaded_libcuda("7f00 /usr/lib/libcudart.so.13\n") == ""


# --- the tables are those of the project ----------------------------------------------------------


def test_constants_are_those_of_the_project(project):
    text = (project / "pyproject.toml").read_text()
    low, high = checks_install.BINDINGS
    assert f'"cuda-bindings>={low[0]}.{low[1]},<{high[0]}"' in text
    required = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE).group(1)
    names = {surroundings.normalised(each) for each in re.findall(r'"([\w-]+)', required)}
    assert names == set(surroundings.REQUIREMENTS)
    oldest, newest = checks_install.PYTHONS
    assert f'requires-python = ">={oldest[0]}.{oldest[1]}"' in text
    assert f"Programming Language :: Python :: {newest[0]}.{newest[1]}" in text
    assert f"Programming Language :: Python :: {newest[0]}.{newest[1] + 1}" not in text
    extra = re.search(r"^inspect = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE).group(1)
    assert set(re.findall(r'^    "(\w+)', extra, re.MULTILINE)) == set(checks_install.INSPECT_EXTRA)
    (built,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse((project / "setup.py").read_text()))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "names"
    )
    assert tuple(built) == surroundings.EXTENSIONS


def test_variables_are_those_of_the_readme(project):
    text = (project / "README.md").read_text()
    named = set(re.findall(r"^\| `(CAKERT_\w+)", text, re.MULTILINE))
    assert named == set(checks_install.VARIABLES)


def test_driver_is_that_of_the_cubins():
    major = int(store().toolkit["release"].split(".")[0])
    assert major * 1000 == MINIMUM_CUDA
    assert str(MINIMUM_DRIVER) in CASES["driver-old"].mend


def test_docs_list_every_case(project):
    text = (project / "docs" / "doctor.md").read_text()
    rows = re.findall(r"^\| ([\w-]+) \| `([\w-]+)` \| (\w+) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == len({case for _, case, _, _ in rows})
    documented = {case: (check, level, mend) for check, case, level, mend in rows}
    expected = {
        case: (entry.check, entry.level, entry.mend)
        for case, entry in CASES.items()
        if entry.level != "ok"
    }
    assert documented == expected
    assert {entry.check for entry in CASES.values()} == CHECKS.keys()
    assert {entry.level for entry in CASES.values()} == set(LEVELS)


# --- the command ----------------------------------------------------------------------------------


def doctor(*arguments: str, check=False, python=(), **stub):
    """The command with the stub as its driver."""
    call = f"main(['doctor', *{list(arguments)!r}])"
    script = f"import sys; from cakert.cli.main import main; sys.exit({call})"
    return run_with_stub(script, check=check, python_flags=python, **stub)


def cases_of(done) -> dict[str, dict[str, str]]:
    return {each["case"]: each for each in json.loads(done.stdout)["checks"]}


def test_json_has_the_documented_fields(project):
    done = doctor("--json", capability=[(9, 0), (8, 6)], devices=2)
    document = json.loads(done.stdout)
    text = (project / "docs" / "doctor.md").read_text()
    fields = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert document["schema"] == 1
    assert document.keys() | document["works"].keys() <= fields
    for each in document["checks"]:
        assert each.keys() == {"check", "case", "level", "found", "why", "mend"} <= fields
        assert each["level"] in LEVELS
    assert document["works"] == {"gpu": ["cuda:0 Stub GPU"], "simulator": True, "inspect": True}
    found = cases_of(done)
    assert "cuda:1 Stub GPU, compute capability 8.6" in found["device-unsupported"]["found"]
    assert "9.0, 10.0, 10.3" in found["device-unsupported"]["why"]
    fit = f"{len(store().fitting((9, 0)))} of {len(store().entries)} cubins fit"
    assert found["devices-ok"]["found"] == f"cuda:0 Stub GPU, compute capability 9.0: {fit}"
    assert document["status"] == done.returncode == 0
    assert not done.stderr
    # The contexts that the look at the memory needed are given back.
    assert done.trace.leaks()["contexts"] == 0


def test_gpu_of_the_stub_works():
    done = doctor(python=("-O",))
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last == ("works here: GPU kernels: yes (cuda:0 Stub GPU), simulator: yes, inspect: yes")
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("status", "case"),
    [
        (803, "driver-mismatch"),
        (999, "driver-failed"),
        (34, "libcuda-stub"),
    ],
)
def test_driver_that_fails(status, case):
    done = doctor("--json", fail={"cuInit": status})
    assert done.returncode == 1
    found = cases_of(done)[case]
    assert found["level"] == "trouble"
    assert found["mend"]
    assert json.loads(done.stdout)["works"] == {"gpu": [], "simulator": True, "inspect": True}


def test_old_driver_and_trouble_alone():
    done = doctor("--trouble", driver=12080)
    assert done.returncode == 1
    assert "│ driver" in done.stdout
    assert "│ python" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("works here: ")
    assert "it offers CUDA 12.8, the cubins need 13.0 (driver 580 or newer)" in done.stdout
    assert "GPU kernels: no" in done.stdout


def test_gpu_without_a_context():
    done = doctor("--trouble", fail={"cuDevicePrimaryCtxRetain": 46})
    assert done.returncode == 1
    text = "cuDevicePrimaryCtxRetain failed with CUDA_ERROR_DEVICE_UNAVAILABLE (46)"
    assert text in done.stdout
    assert "GPU kernels: no" in done.stdout


def test_compute_mode_of_the_driver():
    done = doctor("--json", devices=2, env={"STUB_CUDA_COMPUTE_MODE": "3;2"})
    assert done.returncode == 1
    found = cases_of(done)
    assert "nvidia-smi -i 0 -c DEFAULT" in found["compute-mode-exclusive"]["mend"]
    assert "nvidia-smi -i 1 -c DEFAULT" in found["compute-mode-prohibited"]["mend"]


def test_variables_that_hide_or_confuse():
    done = doctor(
        "--json", env={"CUDA_VISIBLE_DEVICES": "gpu0", "CAKERT_DEBUG_CYTON": "1"}, devices=0
    )
    found = cases_of(done)
    assert "'gpu0' is no GPU" in found["visible-garbage"]["found"]
    assert "CAKERT_DEBUG_CYTHON" in found["variable-unknown"]["mend"]


def test_in_a_forked_child_of_a_process_that_used_the_driver():
    script = """
        import os, sys
        from cakert.cli.main import main
        from cakert.runtime import driver
        driver.device_count()
        pid = os.fork()
        if pid == 0:
            status = main(["doctor", "--json"])
            sys.stdout.flush()
            os._exit(status)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = run_with_stub(script, check=False)
    assert done.returncode == 1
    assert "spawn" in cases_of(done)["driver-forked"]["mend"]


def command(*arguments: str, code="", **options):
    call = f"from cakert.cli.main import main; sys.exit(main({list(arguments)!r}))"
    return subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\n{call}"],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip


def test_without_requirements_the_doctor_still_answers():
    hide = "sys.modules['rich'] = sys.modules['elftools'] = None"
    done = command("doctor", code=hide)
    assert done.returncode == 1, done.stderr  # the metadata of both is still there
    assert "trouble: packages: rich " in done.stdout
    assert "mend: pip install --force-reinstall pyelftools==" in done.stdout
    assert done.stdout.endswith("simulator: no, inspect: no\n")
    assert "store: warning: " in done.stdout
    assert "mend: mend what the checks above name" in done.stdout
    assert "Traceback" not in done.stderr
    done = command("info", code=hide)
    assert done.returncode == 1
    assert re.fullmatch(r"cakert: error: .*rich.* \(`cakert doctor` says .*\)\n", done.stderr)


def test_requirements_that_a_command_misses_while_it_runs():
    done = command("info", code="sys.modules['cuda.bindings'] = None")
    assert done.returncode == 1
    assert re.fullmatch(r"cakert: error: .*cuda.* \(`cakert doctor` says .*\)\n", done.stderr)
    done = command("completion", "bash", code="sys.modules['shtab'] = None")
    assert done.returncode == 1
    assert done.stderr.endswith(": pip install 'cakert[completion]'\n")


def test_numpy_that_cannot_be_imported():
    """Extension modules then print a traceback each, and their own reinstallation is no mend."""
    done = command("doctor", "--json", code="sys.modules['numpy'] = None")
    assert done.returncode == 1
    assert not done.stderr
    found = cases_of(done)
    broken = [each["found"] for each in json.loads(done.stdout)["checks"]
              if each["case"] == "package-broken"]  # fmt: skip
    assert len(broken) == 1 and broken[0].startswith("numpy ")
    assert "extensions-need" in found
    assert "extensions-broken" not in found
    assert json.loads(done.stdout)["works"]["simulator"] is False


def distribution(folder: Path, name: str, version: str, text: bytes = b"") -> None:
    metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_bytes(text or f"Name: {name}\nVersion: {version}\n".encode())


def test_versions_are_those_of_the_first_on_the_path(tmp_path):
    """A system-wide copy behind a newer one is not what gets imported."""
    distribution(tmp_path / "a", "cuda_bindings", "11.8.0")
    distribution(tmp_path / "b", "cuda_bindings", "99.0", b"Name: \xff\n")  # damaged
    distribution(tmp_path / "b", "some_thing", "1.0")
    paths = [str(tmp_path / each) for each in "ab"]
    done = command("doctor", "--json", code=f"sys.path += {paths!r}")
    assert "bindings-other" not in cases_of(done)
    done = command("doctor", "--json", code=f"sys.path[:0] = {paths!r}")
    assert "cuda-bindings 11.8.0" in cases_of(done)["bindings-other"]["found"]


def test_tree_without_extension_modules(tmp_path):
    """The usual mistake: started in a source tree that was never built."""
    shutil.copytree(
        PACKAGE, tmp_path / "cakert", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    write(tmp_path / "setup.py")
    done = command("doctor", "--json", cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 1, done.stderr
    found = cases_of(done)["extensions-missing"]
    assert f"fail in {tmp_path / 'cakert'}" in found["found"]
    assert "pip install -e ." in found["mend"]
    assert json.loads(done.stdout)["works"]["simulator"] is False


def test_extension_modules_that_are_cut_short(tmp_path):
    """Of an installation that ran out of disk: importing one ends the process by a signal."""
    shutil.copytree(PACKAGE, tmp_path / "cakert", ignore=shutil.ignore_patterns("__pycache__"))
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    with (tmp_path / f"cakert/runtime/memory{suffix}").open("r+b") as file:
        file.truncate(5000)
    env = {**os.environ, "PYTHONPATH": ""}
    done = command("doctor", "--json", cwd=tmp_path, env=env)
    assert done.returncode == 1, done.stderr
    found = cases_of(done)["extensions-broken"]
    assert f"cakert.runtime.memory: memory{suffix} has 5000 of " in found["found"]
    assert "--force-reinstall" in found["mend"]
    assert json.loads(done.stdout)["works"]["simulator"] is False


def test_driver_that_nobody_could_ask(tmp_path):
    """Extension modules that are broken say nothing of driver, container and GPUs."""
    here = both(
        file(".dockerenv"), driver(gpus=(), version=None, problem="not asked", asked=False)
    )(healthy(tmp_path), tmp_path)
    results = run_checks(here)
    assert worst(results) == "note"
    assert "devices-none" in {each.case for each in results}
    assert not {each.check for each in results if each.level == "note"} - {"devices"}
    assert what_works(here, results).gpu == ()


def test_libcuda_is_found_without_extension_modules():
    code = "import sys\nsys.modules['cuda.bindings'] = None\n"
    call = "from cakert.cli.main import main; sys.exit(main(['doctor', '--json']))"
    done = run_with_stub(code + call, check=False)
    found = cases_of(done)
    assert "extensions-need" in found
    assert "libcuda-missing" not in found
    assert "not asked" in found["driver-none"]["found"]
    assert not any(each["check"] == "driver" and each["level"] != "ok" for each in found.values())


def test_no_framework_is_imported(capsys):
    before = set(sys.modules)
    main(["doctor"])
    capsys.readouterr()
    assert not {"torch", "jax", "cupy"} & (set(sys.modules) - before)
