"""The checks of `cakert doctor` in their order, and how they are run.

A check is a function of the surroundings. It returns at least one `Result`: a case of the table in
`cakert/cli/cases.py` and what was found. Checks of the installation and of the driver stand in
files of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cakert.cli import checks_devices, checks_driver, checks_install
from cakert.cli.cases import CASES, LEVELS
from cakert.cli.results import Result
from cakert.cli.surroundings import Surroundings

Check = Callable[[Surroundings], list[Result]]

CHECKS: dict[str, Check] = {
    "python": checks_install.python,
    "extensions": checks_install.extensions,
    "packages": checks_install.packages,
    "names": checks_install.names,
    "extras": checks_install.extras,
    "store": checks_install.cubins,
    "frameworks": checks_install.frameworks,
    "variables": checks_install.variables,
    "fork": checks_install.fork,
    "libcuda": checks_driver.libcuda,
    "container": checks_driver.container,
    "kernel-module": checks_driver.kernel_module,
    "device-files": checks_driver.device_files,
    "driver": checks_driver.driver,
    "visible-devices": checks_driver.visible_devices,
    "devices": checks_devices.devices,
    "compute-mode": checks_devices.compute_mode,
    "mig": checks_devices.mig,
    "memory": checks_devices.memory,
}


class Works(NamedTuple):
    """What can be used here."""

    gpu: tuple[str, ...]
    """GPUs that the shipped kernels run on, as "cuda:0 NVIDIA H200"."""
    simulator: bool
    inspect: bool


def run_checks(here: Surroundings) -> list[Result]:
    """Run every check; none stops another."""
    return [result for check in CHECKS.values() for result in check(here)]


def worst(results: list[Result]) -> str:
    """The highest level among them; "ok" where there are none."""
    return max((CASES[each.case].level for each in results), key=LEVELS.index, default="ok")


def what_works(here: Surroundings, results: list[Result]) -> Works:
    """What the results leave to be used.

    A GPU counts where there are cubins for it, its context could be made, and nothing is wrong
    with the installation or the driver.
    """
    cases = {each.case for each in results}
    store_ok = "store-ok" in cases
    sound = store_ok and not cases & {"package-missing", "package-broken"}
    # Plans are made by the same modules for GPUs and for simulated devices.
    simulator = sound and not here.failures
    shared = {"extensions", "packages", "names", "store", "driver", "libcuda"}
    trouble = {
        CASES[case].check
        for case in cases
        if CASES[case].level == "trouble" and CASES[case].check in shared
    }
    gpus = () if trouble else checks_devices.usable(here)
    return Works(
        gpu=tuple(f"cuda:{gpu.ordinal} {gpu.name}" for gpu in gpus),
        simulator=simulator,
        inspect=all(
            name in here.packages and name not in here.unusable for name in ("pyelftools", "rich")
        ),
    )
