"""Types of the command line that several commands share."""

from __future__ import annotations

import argparse

import pytest

from cakert.cli import options
from cakert.cli.main import build_parser


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (options.positive, "7", 7),
        (options.seed, "0", 0),
        (options.up_to(9), "9", 9),
        (options.size, "0", 0),
        (options.size, "232448", 232448),
        (options.size, "48K", 49152),
        (options.size, "48k", 49152),
        (options.extents, "4", (4,)),
        (options.extents, "4x2", (4, 2)),
        (options.extents, "4,2,1", (4, 2, 1)),
        (options.extents, "2147483647", (2147483647,)),
        (options.tolerance, "0", 0.0),
        (options.tolerance, "1e-6", 1e-6),
        (options.device, "cuda:1", 1),
        (options.device, "1", 1),
        (options.device, "sim:sm_103a", "sim:sm_103a"),
        (options.device_or_cpu, "cpu", "cpu"),
        (options.device_or_cpu, "sim:sm_90a", "sim:sm_90a"),
    ],
)
def test_what_is_read(kind, text, value):
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (options.positive, "0", "at least 1, got 0"),
        (options.positive, "x", "a positive integer, got 'x'"),
        (options.positive, "9" * 5000, "a positive integer"),
        (options.seed, "-1", "at least 0, got -1"),
        (options.up_to(9), "10", r"in \[1, 9\], got 10"),
        (options.up_to(9), "0", "at least 1"),
        (options.size, "-1", "bytes in"),
        (options.size, "4M", "bytes in"),
        (options.size, "4.5K", "bytes in"),
        (options.size, "2147483648", "bytes in"),
        (options.size, "2097152K", "bytes in"),
        (options.size, "", "bytes in"),
        (options.extents, "", "one to three integers"),
        (options.extents, "4x", "one to three integers"),
        (options.extents, "4x2x1x1", "one to three integers"),
        (options.extents, "-4", "one to three integers"),
        (options.extents, "4 2", "one to three integers"),
        (options.extents, "\u0664", "one to three integers"),
        (options.extents, "0", r"in \[1, 2147483647\], got 0"),
        (options.extents, "4,0", r"in \[1, 2147483647\], got 0"),
        (options.extents, "2147483648", r"in \[1, 2147483647\]"),
        (options.tolerance, "-1", "finite and at least 0"),
        (options.tolerance, "nan", "finite and at least 0"),
        (options.tolerance, "inf", "finite and at least 0"),
        (options.tolerance, "little", "must be a number, got 'little'"),
        (options.device, "cpu", "sim:sm_103a, got 'cpu'"),
        (options.device, "sim:sm_80a", "got 'sim:sm_80a'"),
        (options.device, "cuda:-1", "got 'cuda:-1'"),
        (options.device, "cuda:12345", "got 'cuda:12345'"),
        (options.device, "cuda:\u0664", "must be cuda:0, cuda:1"),
    ],
)
def test_what_is_refused(kind, text, reason):
    with pytest.raises(argparse.ArgumentTypeError, match=reason):
        kind(text)


@pytest.mark.parametrize("text", ["0", "cuda:0"])
@pytest.mark.parametrize(
    "command",
    [
        ["demo"],
        ["explain", "mask.npy"],
        ["load", "x.cubin"],
        ["run", "x.cubin", "--grid", "1", "--block", "1"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_spells_a_gpu_alike(command, text):
    assert build_parser().parse_args([*command, "--device", text]).device == 0
