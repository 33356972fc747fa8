"""When the driver is touched at all: import, first use, fork, and the end of the process."""

from __future__ import annotations

import textwrap

import pytest
from helpers.stub import run_with_stub

PRELUDE = """
import os, sys
import numpy as np
from stub_child import failure, mark, report
"""


def run_script(script: str, **options):
    return run_with_stub(PRELUDE + textwrap.dedent(script), **options)


def test_importing_everything_makes_no_driver_call():
    result = run_script(
        """
        import importlib, pkgutil
        import cakert
        for name in cakert.__all__:
            getattr(cakert, name)
        for module in pkgutil.walk_packages(cakert.__path__, "cakert."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        from cakert import cubins
        from cakert.runtime import driver
        cubins.store()
        report([driver.initialised(), "torch" in sys.modules, "cupy" in sys.modules])
        """
    )
    assert result.report == [False, False, False]
    assert result.trace == []


def test_a_plan_with_bad_arguments_makes_no_driver_call():
    result = run_script(
        """
        from stub_problem import Problem
        errors = []
        for changes in ({"M": 255}, {"head_dim": 80}, {"dtype": "float32"}, {"q_heads": 3}):
            errors.append(failure(Problem(**changes).plan)["type"])
        p = Problem()
        errors.append(failure(lambda: p.plan(block_mask=p.mask()[:, :, 1:]))["type"])
        empty = p.mask()
        empty[1, 2] = False
        errors.append(failure(lambda: p.plan(block_mask=empty))["type"])
        report(errors)
        """
    )
    assert result.report == ["ValueError"] * 6
    assert result.trace == []


@pytest.mark.parametrize("method", ["os.fork", "multiprocessing"])
def test_a_child_of_a_process_that_only_imported_works(method):
    """F44, first half."""
    result = run_script(
        f"""
        import cakert, multiprocessing
        from stub_problem import Problem, run
        cakert.plan_cake_vsa, cakert.Library
        def child():
            p = Problem()
            run(p.plan(), *p.tensors(), out=p.tensors("out")[0])
            return 0
        if {method!r} == "os.fork":
            pid = os.fork()
            if pid == 0:
                os._exit(child())
            report(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        else:
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            process.join(30)
            report(process.exitcode)
        """
    )
    assert result.report == 0
    (launch,) = result.trace.named("cuLaunchKernelEx")
    assert launch["status"] == 0


def test_a_child_of_a_process_that_used_the_driver_gets_a_clear_error():
    """F44, second half: within seconds, from every entry point, and the parent goes on."""
    result = run_script(
        """
        import cakert, gc, json
        from cakert.runtime import driver
        from helpers.fake_tensor import FakeCuda
        from stub_problem import Problem, run
        from tiny_cubin import tiny_cubin
        p = Problem()
        plan, tensors, out = p.plan(), p.tensors(), p.tensors("out")[0]
        run(plan, *tensors, out=out)
        image = tiny_cubin({"add": (8, 8, 4)})
        kernel = cakert.Library(image)["add"]
        x = FakeCuda(np.arange(4.0) + 1)
        launcher = kernel.prepare(x, x, 4, grid=1, block=32)
        reader, writer = os.pipe()
        mark("fork")
        pid = os.fork()
        if pid == 0:
            errors = [
                failure(p.plan),
                failure(lambda: run(plan, *tensors, out=out)),
                failure(lambda: run(plan, *tensors)),
                failure(lambda: cakert.update_cake_vsa(plan, block_mask=p.mask())),
                failure(lambda: cakert.Library(image)),
                failure(lambda: kernel.launch(x, x, 4, grid=1, block=32)),
                failure(lambda: launcher.run(x, x)),
                failure(driver.device_count),
            ]
            del plan, kernel, launcher
            gc.collect()
            with os.fdopen(writer, "w") as pipe:
                json.dump(errors, pipe)
            sys.exit(7)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            errors = json.load(pipe)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        mark("parent goes on")
        run(plan, *tensors, out=out)
        report([errors, code, pid])
        """
    )
    errors, code, child = result.report
    for error in errors:
        assert "RuntimeError" in error["bases"], error
        assert "spawn" in error["text"], error
    assert code == 7
    in_child = [call for call in result.trace if call["pid"] == child]
    assert not [call for call in in_child if call["call"].startswith(("cuMem", "cuLaunch"))]
    assert len(result.trace.after("parent goes on").named("cuLaunchKernelEx")) == 1


SURVIVORS = """
import atexit, cakert
from stub_problem import Problem, run
p = Problem()
plan = p.plan()
tensors, out = p.tensors(), p.tensors("out")[0]
run(plan, *tensors, out=out)
allocated, lse = run(plan, *tensors, return_lse=True)
from tiny_cubin import tiny_cubin
kernel = cakert.Library(tiny_cubin({"add": (8, 8, 4)}))["add"]

class Keeper:
    def __init__(self):
        self.plan, self.out, self.kernel = p.plan(), run(plan, *tensors), kernel
    def __del__(self):
        print("deleted", self.plan["M"])

keeper = Keeper()
keeper.itself = keeper
module = type(sys)("kept_alive")
module.plan, module.out = p.plan(), allocated
sys.modules["kept_alive"] = module
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError('uncaught')", 1),
        ("atexit.register(lambda: run(plan, *tensors, out=out))", 0),
        ("import threading; threading.Thread(target=run, args=(plan, *tensors)).start()", 0),
    ],
)
def test_the_process_ends_as_its_script_says(ending, code):
    """F45."""
    result = run_script(SURVIVORS + ending, check=False)
    assert result.returncode == code, result.stderr
    assert "deleted 256" in result.stdout
    lines = [line for line in result.stderr.splitlines() if line]
    if "uncaught" in ending:
        assert lines[-1] == "RuntimeError: uncaught"
        assert result.stderr.count("Traceback") == 1
    else:
        assert lines == []
    # Questions whose answer is a status; every other call, those at exit included, succeeds.
    questions = {"cuKernelGetParamInfo": 1, "cuPointerGetAttribute": 1, "cuStreamIsCapturing": 201}
    for call in result.trace:
        assert call["status"] in (0, questions.get(call["call"])), call


def test_a_second_interpreter_thread_may_be_the_first_user():
    """Two threads race for the first use: one initialisation, two plans."""
    result = run_script(
        """
        import threading
        from stub_problem import Problem, run
        barrier, errors = threading.Barrier(4), []
        def work():
            try:
                p = Problem()
                barrier.wait()
                run(p.plan(), *p.tensors(), out=p.tensors("out")[0])
            except BaseException as error:
                errors.append(repr(error))
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report(errors)
        """
    )
    assert result.report == []
    assert len(result.trace.named("cuLibraryLoadData")) == 1
    assert len(result.trace.named("cuLaunchKernelEx")) == 4
    assert {call["device"] for call in result.trace.named("cuDevicePrimaryCtxRetain")} == {0}
