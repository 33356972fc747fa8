"""Events under the stub: time between two records, capture, failures, and that none is left."""

from __future__ import annotations

import textwrap

import pytest
from helpers.stub import run_with_stub

PRELUDE = """
import gc, os
from cakert.runtime.event import Event
from stub_child import (
    begin_capture, context_depth, end_capture, fail, failure, make_current, mark, new_stream,
    report,
)
"""


def run_script(script: str, **options):
    """The script as a function: what it made is gone before the interpreter ends."""
    body = textwrap.indent(textwrap.dedent(script), "    ")
    return run_with_stub(f"{PRELUDE}\ndef work():\n{body}\nwork()\n", **options)


def test_time_between_two_records():
    result = run_script(
        """
        stream = new_stream()
        start, middle, end = Event(0), Event(0), Event(0)
        for event, where in ((start, None), (middle, 0), (end, stream)):
            event.record(where)
        end.synchronize()
        times = [middle.elapsed_us(start), end.elapsed_us(middle), end.elapsed_us(start),
                 start.elapsed_us(end)]
        start.record()                                   # the earlier mark is forgotten
        times.append(start.elapsed_us(middle))
        report([times, stream, repr(start), start.device, context_depth()])
        """,
        env={"STUB_CUDA_EVENT_NS": "1500;22000;4000"},
    )
    times, stream, text, device, depth = result.report
    assert times == pytest.approx([1.5, 22.0, 23.5, -23.5, 26.0])
    assert (text, device, depth) == ("Event(device=0)", 0, 0)
    calls = result.trace
    assert [call["stream"] for call in calls.named("cuEventRecord")] == [0, 0, stream, 0]
    assert {call["flags"] for call in calls.named("cuEventCreate")} == {0}  # with timing
    assert len(calls.named("cuEventSynchronize")) == 1
    assert len(calls.named("cuEventDestroy")) == 3
    assert calls.leaks()["events"] == 0


def test_events_of_another_device():
    result = run_script(
        """
        make_current(0)
        near, far = Event(0), Event(1)
        mark("far")
        far.record()
        far.synchronize()
        far.elapsed_us(far)
        mark("end")
        report([failure(lambda: far.elapsed_us(near)), failure(lambda: near.elapsed_us(None)),
                failure(lambda: Event(2)), failure(lambda: Event(-1)), context_depth()])
        """,
        devices=2,
    )
    other, none, beyond, negative, depth = result.report
    calls = result.trace.after("far").named(
        "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"
    )
    assert [call["current"] for call in calls] == [1, 1, 1]
    assert other["type"] == "ValueError"
    assert "of cuda:1, as this one; it is of cuda:0" in other["text"]
    assert none["type"] == "TypeError"
    for error in (beyond, negative):
        assert error["type"] == "ValueError"
        assert "device must be in [0, 2)" in error["text"]
    assert depth == 1  # what make_current left
    assert result.trace.leaks()["events"] == 0


def test_an_event_that_was_never_recorded():
    result = run_script(
        """
        start, end = Event(0), Event(0)
        end.record()
        end.synchronize()
        report([failure(lambda: end.elapsed_us(start)), failure(lambda: start.elapsed_us(end))])
        """
    )
    for error in result.report:
        assert error["type"] == "CudaError"
        assert error["name"] == "CUDA_ERROR_INVALID_HANDLE"
        assert "cuEventElapsedTime" in error["text"]
    assert result.trace.leaks()["events"] == 0


def test_capture_is_refused_and_not_spoiled():
    result = run_script(
        """
        side, blocking = new_stream(), new_stream(blocking=True)
        event, other = Event(0), Event(0)
        said = []
        for stream in (side, blocking):
            begin_capture(stream)
            said.append(failure(lambda: event.record(stream)))
            if stream == blocking:
                said.append(failure(lambda: event.record()))   # the legacy stream would wait for it
            else:
                event.record()                                  # it does not for this one
            event.synchronize()
            said.append(end_capture(stream))
        other.record(side)
        report([said, context_depth()])
        """
    )
    (first, first_end, second, legacy, second_end), depth = result.report
    for error in (first, second, legacy):
        assert error["type"] == "RuntimeError"
        assert "being captured" in error["text"]
    assert first_end == second_end == "CUDA_SUCCESS"
    assert depth == 0
    assert result.trace.leaks()["events"] == 0


def test_failures_are_named():
    result = run_script(
        """
        event = Event(0)
        event.record()
        steps = {
            "cuEventCreate": lambda: Event(0),
            "cuEventRecord": lambda: event.record(),
            "cuEventSynchronize": lambda: event.synchronize(),
            "cuEventElapsedTime": lambda: event.elapsed_us(event),
        }
        errors = {}
        for call, step in steps.items():
            fail(f"{call}=700@1")
            errors[call] = failure(step)
            step()
        report([errors, context_depth()])
        """
    )
    errors, depth = result.report
    assert depth == 0
    assert len(errors) == 4
    for call, error in errors.items():
        assert (error["type"], error["status"]) == ("CudaError", 700)
        assert f"{call} failed with CUDA_ERROR_ILLEGAL_ADDRESS" in error["text"]
    assert result.trace.leaks()["events"] == 0


def test_the_end_of_an_event_is_quiet():
    result = run_script(
        """
        event, other = Event(0), Event(0)
        fail("cuEventDestroy=700@1,cuCtxPushCurrent=700@2")
        del event                       # destroying fails
        del other                       # not even the context can be entered
        fail("")
        survivor = Event(0)
        if os.fork() == 0:
            del survivor                # a child leaves the parent's alone
            gc.collect()
            os._exit(0)
        os.wait()
        report(context_depth())
        """
    )
    assert result.stderr == ""
    assert result.report == 0
    destroyed = result.trace.named("cuEventDestroy")
    assert [call["status"] for call in destroyed] == [700, 0]
    assert len({call["pid"] for call in destroyed}) == 1


def test_no_event_without_a_driver_that_works():
    result = run_script("report(failure(lambda: Event(0)))", fail={"cuInit": 100})
    assert result.report["type"] == "CudaError"
    assert result.report["name"] == "CUDA_ERROR_NO_DEVICE"


def test_wrong_streams():
    result = run_script(
        """
        event = Event(0)
        report([failure(lambda: event.record("0")), failure(lambda: event.record(12345)),
                failure(lambda: Event()), failure(lambda: Event("0"))])
        """
    )
    text, handle, none, word = result.report
    assert text["type"] == none["type"] == word["type"] == "TypeError"
    assert (handle["type"], handle["name"]) == ("CudaError", "CUDA_ERROR_INVALID_HANDLE")
