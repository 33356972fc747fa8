"""Cases on a GPU and on the simulator."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np

from instruction_cases.cubins import CubinSource
from instruction_cases.model import Bytes, Case, MapSpec

__all__ = ["GpuRunner", "Runner", "SimRunner"]


class Runner(Protocol):
    """Runs a case and returns its output."""

    def run(self, case: Case) -> Bytes:
        """Bytes of the output after the launch."""


class SimRunner:
    """The simulated sm_90a.

    Parameters
    ----------
    schedule, seed
        As of `cakert.sim.Gpu`.
    """

    def __init__(self, schedule: str = "eager", seed: int = 0) -> None:
        from cakert import sim

        self.gpu = sim.Gpu("sm_90a", sms=1, schedule=schedule, seed=seed)  # type: ignore[arg-type]
        self._modules: dict[str, Any] = {}

    def run(self, case: Case) -> Bytes:
        """Raises what `Module.launch` raises."""
        module = self._modules.get(case.ptx)
        if module is None:
            module = self._modules[case.ptx] = self.gpu.load_ptx(case.ptx)
        source = self.gpu.array(case.source, name="in")
        output = self.gpu.array(case.before, name="out")
        args: list[Any] = [output, source]
        if case.map is not None:
            args.append(_simulated_map(case.map, {"in": source, "out": output}[case.map.buffer]))
        module.launch(
            "k", grid=1, block=case.block, args=[*args, *case.scalars],
            shared_bytes=case.shared_bytes,
        )  # fmt: skip
        return np.array(output.data)


def _simulated_map(spec: MapSpec, array: Any) -> Any:
    from cakert import sim

    return sim.TensorMap.encode(
        spec.data_type, array.pointer, spec.dims, spec.strides, spec.box, spec.steps,
        swizzle=spec.swizzle, oob_fill=spec.fill,
    )  # fmt: skip


class GpuRunner:
    """Device 0, through the driver."""

    def __init__(self, cubins: CubinSource) -> None:
        from cakert.runtime.library import Library
        from cakert.runtime.memory import DeviceArray

        self._library, self._array = Library, DeviceArray
        self._cubins = cubins
        self._libraries: dict[str, Any] = {}
        self._encode: Any = None

    def run(self, case: Case) -> Bytes:
        """Raises CudaError where the driver reports one."""
        library = self._libraries.get(case.ptx)
        if library is None:
            library = self._libraries[case.ptx] = self._library(self._cubins.cubin(case.ptx))
        source = self._array.from_numpy(case.source, 0)
        output = self._array.from_numpy(case.before, 0)
        args: list[Any] = [output, source]
        if case.map is not None:
            args.append(self._map(case.map, {"in": source, "out": output}[case.map.buffer]))
        library["k"].launch(
            *args, *case.scalars, grid=1, block=case.block, shared_bytes=case.shared_bytes
        )
        return np.asarray(output.numpy())

    def _map(self, spec: MapSpec, array: Any) -> bytes:
        """The 128 bytes of cuTensorMapEncodeTiled.

        Called through ctypes, because the driver wants the map at a multiple of 64 bytes and the
        object of the bindings lies where Python puts it.
        """
        from cuda.bindings import driver

        def member(enumeration: Any, name: str) -> int:
            return int(getattr(enumeration, name))

        if self._encode is None:
            # The runtime leaves no context current, and the call refuses to work without one
            # (CUDA_ERROR_INVALID_CONTEXT of driver 580.159, not documented).
            status, context = driver.cuDevicePrimaryCtxRetain(0)
            status = status or driver.cuCtxSetCurrent(context)[0]
            if status:
                raise RuntimeError(f"no context on device 0: {status}")
            self._encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
        rank = len(spec.dims)
        room = ctypes.create_string_buffer(128 + 64)
        start = ctypes.addressof(room) + -ctypes.addressof(room) % 64
        swizzle = "NONE" if spec.swizzle == "none" else spec.swizzle
        fill = "NAN_REQUEST_ZERO_FMA" if spec.fill == "nan" else "NONE"
        prefix = "CU_TENSOR_MAP"
        result = self._encode(
            ctypes.c_void_p(start),
            member(driver.CUtensorMapDataType, f"{prefix}_DATA_TYPE_{spec.data_type.upper()}"),
            ctypes.c_uint32(rank),
            ctypes.c_void_p(array.pointer),
            (ctypes.c_uint64 * rank)(*spec.dims),
            (ctypes.c_uint64 * max(rank - 1, 1))(*spec.strides),
            (ctypes.c_uint32 * rank)(*spec.box),
            (ctypes.c_uint32 * rank)(*spec.steps),
            member(driver.CUtensorMapInterleave, f"{prefix}_INTERLEAVE_NONE"),
            member(driver.CUtensorMapSwizzle, f"{prefix}_SWIZZLE_{swizzle}"),
            member(driver.CUtensorMapL2promotion, f"{prefix}_L2_PROMOTION_NONE"),
            member(driver.CUtensorMapFloatOOBfill, f"{prefix}_FLOAT_OOB_FILL_{fill}"),
        )
        if result:
            raise RuntimeError(f"cuTensorMapEncodeTiled returned {result} for {spec}")
        return ctypes.string_at(start, 128)
