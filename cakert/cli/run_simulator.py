"""``cakert run`` on the simulator: which PTX, and one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from cakert.cli.argument_specs import FLOATS, ScalarSpec, Spec
from cakert.cli.kernel_files import Image, ptx_beside, targets_text
from cakert.cli.launch_job import Job

if TYPE_CHECKING:
    from cakert.sim import Gpu, Module, Report

Array = npt.NDArray[Any]


def pick_images(images: tuple[Image, ...], arch: str, path: Path) -> tuple[Image, ...]:
    """The PTX that runs on a simulated GPU: of the file, or beside a cubin.

    Raises
    ------
    RuntimeError
        There is none; says what is missing.
    """
    from cakert.sim.targets import architecture, check_target

    texts = tuple(image for image in images if image.kind == "ptx")
    if not texts and images[0].place == str(path):
        beside = ptx_beside(path)
        if beside is None:
            raise RuntimeError(
                f"{path}: machine code, and the simulator executes PTX: put the PTX that it was "
                f"assembled from beside it, as {path.with_suffix('.ptx').name} or "
                f"{path.with_suffix('.ptx').name}.xz"
            )
        texts = (beside,)

    def why_not(image: Image) -> str:
        try:
            check_target(image.target, architecture(arch))
        except ValueError as problem:
            return str(problem)
        return ""

    reasons = [why_not(image) for image in texts]
    fitting = tuple(image for image, reason in zip(texts, reasons, strict=True) if not reason)
    if not fitting:
        reason = reasons[0] if len(reasons) == 1 else f"it has {targets_text(images)}"
        raise RuntimeError(f"{path}: no PTX for a simulated {arch}: {reason}")
    return fitting


def load(image: Image, symbol: str, gpu: Gpu) -> Module:
    """Read the PTX.

    Raises
    ------
    ValueError
        It cannot be read, or has no such kernel after all.
    """
    from cakert.sim import PtxError

    try:
        module = gpu.load_ptx(image.read())
    except PtxError as problem:
        raise ValueError(f"{image.place}: {problem}") from problem
    if symbol not in module.kernels:
        there = ", ".join(module.kernels) or "none"
        raise ValueError(f"{image.place}: there is no kernel {symbol!r}; there are: {there}")
    return module


def check_kinds(module: Module, symbol: str, specs: Sequence[Spec], names: Sequence[str]) -> None:
    """Refuse an integer where PTX says float, and the reverse; a GPU would run with its bits.

    Raises
    ------
    ValueError
        Names the argument, its parameter's type and what was given.
    """
    parameters = module.ptx.functions[symbol].parameters
    for number, (spec, name, parameter) in enumerate(zip(specs, names, parameters, strict=True)):
        kind = parameter.type[0]
        if not isinstance(spec, ScalarSpec) or kind not in "fsu":
            continue
        if (kind == "f") != (spec.dtype in FLOATS):
            raise ValueError(
                f"argument {number} ({name}): the parameter of {symbol} is of type "
                f".{parameter.type}, got {spec}"
            )


def execute(
    job: Job, module: Module, progress: Callable[[int, int], None]
) -> tuple[dict[str, Array], Report]:
    """Launch once.

    Returns
    -------
    dict, Report
        The arrays after the launch, by name, and what the launch did.

    Raises
    ------
    TypeError, ValueError
        Arguments or geometry that do not fit; an instruction that is not simulated.
    Fault
        The kernel did what the ISA leaves undefined, or will never finish.
    """
    arrays = {
        argument.name: module.gpu.array(argument.value, name=argument.name)
        for argument in job.arguments
        if argument.is_array
    }
    arguments = [
        arrays[argument.name] if argument.is_array else argument.value for argument in job.arguments
    ]
    report = module.launch(
        job.symbol,
        grid=job.grid,
        block=job.block,
        args=arguments,
        shared_bytes=job.shared_bytes,
        cluster=job.cluster,
        progress=progress,
    )
    return {name: array.numpy() for name, array in arrays.items()}, report
