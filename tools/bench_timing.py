"""Clocks of the benchmark: graph replays, kernels alone, host calls, plans. Needs torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]


def summary(times: list[float]) -> dict[str, float]:
    """Median, fastest and 80th percentile."""
    times = sorted(times)
    return {
        "ms": statistics.median(times),
        "min_ms": times[0],
        "p80_ms": times[len(times) * 4 // 5],
        "samples": len(times),
    }


class Timer:
    """GPU and host clocks; contenders take turns, so that a drifting clock meets them alike."""

    def __init__(self) -> None:
        self.buffer = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    @staticmethod
    def capture(call: Call) -> torch.cuda.CUDAGraph:
        """A graph of one call, which must have run before."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph

    def gpu_ms(self, call: Call, **options: Any) -> dict[str, float]:
        """Run, capture and time one call."""
        call()
        return self.replays_ms([self.capture(call)], **options)[0]

    def replays_ms(
        self,
        graphs: list[torch.cuda.CUDAGraph],
        budget_ms: float = 400.0,
        flush: bool = True,
    ) -> list[dict[str, float]]:
        """Milliseconds of each graph's replays by events, the L2 flushed before each."""

        def samples(count: int) -> list[list[float]]:
            pairs: list[list[Any]] = [[] for _ in graphs]
            for _ in range(count):
                for graph, own in zip(graphs, pairs, strict=True):
                    if flush:
                        self.buffer.zero_()
                    start, end = torch.cuda.Event(True), torch.cuda.Event(True)
                    start.record()
                    graph.replay()
                    end.record()
                    own.append((start, end))
            torch.cuda.synchronize()
            return [sorted(start.elapsed_time(end) for start, end in own) for own in pairs]

        round_ms = sum(times[1] + 0.08 for times in samples(3))
        count = int(min(100, max(15, budget_ms / round_ms)))
        return [summary(times) for times in samples(count)]

    def kernels_ms(self, calls: list[Call], rounds: int = 30) -> list[dict[str, Any]]:
        """Sum of the durations of each call's own kernels, by CUPTI through torch's profiler.

        What lies between kernels is not counted. The L2 is flushed before each call; the flush is
        told from the calls by its kind and length, and parts them.
        """
        from torch.profiler import ProfilerActivity, profile

        for call in calls:
            call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            for _ in range(rounds + 2):
                for call in calls:
                    self.buffer.zero_()
                    call()
            torch.cuda.synchronize()
        on_gpu = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        groups: list[list[tuple[str, float]]] = []
        for event in sorted(on_gpu, key=lambda e: e.time_range.start):
            lasted = event.time_range.elapsed_us()
            if lasted > 30 and ("emset" in event.name or "FillFunctor" in event.name):
                groups.append([])
            elif groups:
                groups[-1].append((event.name, lasted))
        if len(groups) != (rounds + 2) * len(calls) or not all(groups):
            raise RuntimeError(
                f"the profiler saw {len(groups)} flushes of {(rounds + 2) * len(calls)}, "
                f"{sum(not group for group in groups)} with no kernel behind"
            )
        found = []
        for place in range(len(calls)):
            own = groups[place :: len(calls)][2:]  # the first rounds warm up
            times = [sum(lasted for _, lasted in group) / 1e3 for group in own]
            names = list(dict.fromkeys(name.split("(")[0][:80] for name, _ in own[-1]))
            found.append(summary(times) | {"kernels": names})
        return found

    @staticmethod
    def host_us(call: Call, bursts: int = 30, calls: int = 256) -> dict[str, float]:
        """Microseconds a call on the host, fastest and median burst."""
        times = []
        for _ in range(bursts):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times.append((time.perf_counter() - start) / calls * 1e6)
        torch.cuda.synchronize()
        return {"min_us": min(times), "median_us": statistics.median(times)}

    @staticmethod
    def synchronised_ms(call: Call, count: int = 5, budget_ms: float = 1000.0) -> tuple[Any, float]:
        """What the first call gives, and the median wall clock up to the end of the GPU work.

        The first call's own time counts only where it leaves no budget for another.
        """
        first = None
        times: list[float] = []
        while len(times) < count + 1 and sum(times) < budget_ms:
            torch.cuda.synchronize()
            start = time.perf_counter()
            kept = call()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
            first = kept if first is None else first
            del kept  # freeing a plan is not planning
        return first, statistics.median(times[1:] or times)
