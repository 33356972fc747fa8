"""Run a script in a process whose CUDA driver is the stub of ``tests/stub_driver``.

The driver is compiled once for its sources (a cache keyed by their hash, filled by an atomic
rename, so that parallel test workers may race), and reached by ``LD_LIBRARY_PATH`` in a subprocess:
the process of the tests itself never loads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
SOURCES = TESTS / "stub_driver"
COMPILE_FLAGS = ("-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread")
REPORT = "REPORT "  # what stub_child.report() puts before its JSON

Call = dict[str, Any]


class Trace(list[Call]):
    """Driver calls of a process and its children, in order. Marks are entries named "mark"."""

    def named(self, *names: str) -> Trace:
        """The calls of these functions."""
        return Trace(call for call in self if call["call"] in names)

    def names(self) -> list[str]:
        """Function names alone, in order."""
        return [call["call"] for call in self]

    def after(self, mark: str) -> Trace:
        """The calls between `stub_child.mark(mark)` and the next mark, or the end."""
        start = next(
            i for i, call in enumerate(self) if call["call"] == "mark" and call["text"] == mark
        )
        rest = self[start + 1 :]
        stop = next(
            (i for i, call in enumerate(rest) if call["call"] in ("mark", "end of process")),
            len(rest),
        )
        return Trace(rest[:stop])

    def leaks(self) -> Call:
        """The summary that the stub writes at the end of the process."""
        (summary,) = self.named("end of process")
        return summary


@dataclass(frozen=True)
class StubResult:
    """What the process did.

    Attributes
    ----------
    report
        The value that the script gave to `stub_child.report`, None where it gave none.
    """

    stdout: str
    stderr: str
    returncode: int
    trace: Trace
    report: Any


def compiler() -> str | None:
    """The system's C compiler: ``CC``, or the first of cc, gcc and clang."""
    wanted = os.environ.get("CC", "").split()[:1]
    return next(filter(None, map(shutil.which, [*wanted, "cc", "gcc", "clang"])), None)


def build() -> Path:
    """The folder with libcuda.so.1; skips the test where there is no C compiler at all."""
    cc = compiler()
    if cc is None:
        pytest.skip("the stub driver needs a C compiler (cc, gcc or clang), and there is none")
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(repr((cc, COMPILE_FLAGS)).encode())
    for source in sources:
        digest.update(source.read_bytes())
    root = Path(tempfile.gettempdir()) / f"cakert-stub-driver-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    folder = root / digest.hexdigest()[:24]
    if (folder / "libcuda.so.1").exists():
        return folder
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        library = Path(scratch) / "libcuda.so.1"
        command = [cc, *COMPILE_FLAGS, "-Wl,-soname,libcuda.so.1", "-o", str(library)]
        command += [str(source) for source in sources if source.suffix == ".c"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        folder.mkdir(exist_ok=True)
        library.replace(folder / "libcuda.so.1")
    return folder


def _per_device(values: object) -> str:
    """(9, 0), or a list of such pairs, or of numbers or names: one item a device."""
    items = values if isinstance(values, list) else [values]
    return ";".join(
        ".".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in items
    )


def _python_path() -> str:
    """Where the child finds cakert, the helpers and stub_child: as this process does."""
    spec = importlib.util.find_spec("cakert")
    assert spec is not None and spec.origin is not None, "cakert cannot be imported"
    package_root = str(Path(spec.origin).resolve().parents[1])
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [str(TESTS), str(SOURCES), package_root, inherited]))


def environment(
    trace: Path,
    *,
    capability: tuple[int, int] | list[tuple[int, int]] = (9, 0),
    driver: int = 13000,
    devices: int = 1,
    fail: str | Mapping[str, int | str] = "",
    env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of a process that uses the stub; arguments as in `run_with_stub`."""
    result = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STUB_CUDA", "CUDA_", "CAKERT_"))
    }
    if not isinstance(fail, str):
        fail = ",".join(f"{name}={status}" for name, status in fail.items())
    library_path = os.pathsep.join(filter(None, [str(build()), result.get("LD_LIBRARY_PATH", "")]))
    result.update(
        LD_LIBRARY_PATH=library_path,
        PYTHONPATH=_python_path(),
        PYTHONFAULTHANDLER="1",
        STUB_CUDA_TRACE=str(trace),
        STUB_CUDA_CAPABILITY=_per_device(capability),
        STUB_CUDA_DRIVER=str(driver),
        STUB_CUDA_DEVICES=str(devices),
        STUB_CUDA_FAIL=fail,
    )
    result.update(env or {})
    return result


def run_with_stub(
    script: str,
    *,
    capability: tuple[int, int] | list[tuple[int, int]] = (9, 0),
    driver: int = 13000,
    devices: int = 1,
    fail: str | Mapping[str, int | str] = "",
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    python_flags: Sequence[str] = (),
    arguments: Iterable[object] = (),
    check: bool = True,
) -> StubResult:
    """Run Python source with the stub as the CUDA driver.

    Parameters
    ----------
    script
        Source; common indentation is removed. `stub_child` and `helpers` can be imported.
    capability
        Compute capability, or a list with one a device.
    driver
        What cuDriverGetVersion gives: 13000 is CUDA 13.0.
    fail
        ``"cuLaunchKernelEx=700@2,cuMemAlloc=2"``: status of a function, of its n-th call only
        (``@n``), or from the n-th on (``@n+``). Also a mapping {function: status}.
    env
        Further variables, STUB_CUDA_* (see the C files) among them.
    timeout
        Seconds; a process that takes longer is killed with its children and fails the test.
    check
        Whether a non-zero exit status fails the test.
    """
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory(prefix="cakert-trace-") as folder:
        path = Path(folder) / "trace"
        path.touch()
        variables = environment(
            path, capability=capability, driver=driver, devices=devices, fail=fail, env=env
        )
        command = [sys.executable, *python_flags, "-c", textwrap.dedent(script)]
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            # The whole session: a forked child would otherwise hold the pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate(timeout=10)
            raise AssertionError(
                f"no end within {timeout} s\n--- stdout\n{stdout}\n--- stderr\n{stderr}"
            ) from None
        trace = Trace(json.loads(line) for line in path.read_text().splitlines())
    reports = [line for line in stdout.splitlines() if line.startswith(REPORT)]
    report = json.loads(reports[-1].removeprefix(REPORT)) if reports else None
    if check and process.returncode != 0:
        raise AssertionError(
            f"exit status {process.returncode}\n--- stdout\n{stdout}\n--- stderr\n{stderr}"
        )
    return StubResult(stdout, stderr, process.returncode, trace, report)
