"""A machine without a driver: everything imports, and what needs a driver says so (F64, F44)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import cakert.runtime

ROOT = Path(cakert.runtime.__file__).resolve().parents[2]


def run(script: str, tmp_path: Path) -> list[str]:
    """Run a script where the driver cannot be opened, on a machine with a GPU too."""
    # An empty file of the driver's name is found first, and the loader refuses it.
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_importing_touches_no_driver_and_no_framework(tmp_path):
    (line,) = run(
        """
        import sys
        from cakert.runtime import arguments, driver, library, memory, tensor
        with open("/proc/self/maps") as maps:
            mapped = "libcuda" in maps.read()
        print(driver.initialised(), mapped, sorted({"torch", "jax", "cupy"} & set(sys.modules)))
        """,
        tmp_path,
    )
    assert line == "False False []"


def test_every_door_to_the_driver_says_that_there_is_none(tmp_path):
    lines = run(
        """
        import struct
        import numpy as np
        from cakert.runtime import driver, library, memory
        header = struct.pack("<16sHHIQQQIHHHHHH", b"\\x7fELF\\x02\\x01\\x01", 2, 190, 1, 0, 0, 64,
                             0, 64, 56, 0, 64, 1, 0) + bytes(64)
        doors = [
            driver.device_count, driver.driver_version, driver.current_device,
            lambda: driver.device_name(0), lambda: driver.device_capability(0),
            lambda: driver.is_capturing(0), lambda: driver.synchronize(0),
            lambda: driver.stream_synchronize(0), lambda: library.Library(header),
            lambda: memory.Workspace(0, 16), lambda: memory.DeviceArray.empty((2, 3), "bfloat16"),
            lambda: memory.DeviceArray.from_numpy(np.ones(3)),
        ]
        for door in doors:
            for _ in range(2):
                try:
                    door()
                except RuntimeError as error:
                    print(type(error).__name__, str(error).replace("\\n", " "))
        print(driver.initialised())
        """,
        tmp_path,
    )
    assert len(lines) == 12 * 2 + 1
    for line in lines[:-1]:
        assert line.startswith("DriverNotFoundError no NVIDIA driver was found")
        assert "driver 580 or newer" in line
    assert lines[-1] == "False"


def test_tensors_are_described_without_a_driver(tmp_path):
    (line,) = run(
        """
        import numpy as np
        from cakert.runtime import tensor
        print(tensor.describe(np.arange(6.0).reshape(2, 3)).strides)
        """,
        tmp_path,
    )
    assert line == "(3, 1)"


def test_a_child_forked_before_the_first_use_is_an_ordinary_process(tmp_path):
    """F44: importing does not count as use."""
    lines = run(
        """
        import os
        from cakert.runtime import driver
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        try:
            driver.device_count()
        except RuntimeError as error:
            print(type(error).__name__, flush=True)
        if pid == 0:
            os._exit(0)
        """,
        tmp_path,
    )
    assert lines == ["DriverNotFoundError"] * 2
