import numpy as np
import pytest

from cakert.sim.matrix import fragments


def isa_a_f16_k16(lane, i):
    """PTX ISA "Matrix Fragments for mma.m16n8k16 with floating point type", A."""
    group, member = lane >> 2, lane % 4
    row = group if (0 <= i < 2 or 4 <= i < 6) else group + 8
    col = member * 2 + (i & 1) if i < 4 else member * 2 + (i & 1) + 8
    return row, col


def isa_b_f16_k16(lane, i):
    group, member = lane >> 2, lane % 4
    row = member * 2 + (i & 1) if i < 2 else member * 2 + (i & 1) + 8
    return row, group


def isa_c(lane, i):
    group, member = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), member * 2 + (i & 1)


def isa_a_tf32_k8(lane, i):
    group, member = lane >> 2, lane % 4
    row = group if i in (0, 2) else group + 8
    col = member if i in (0, 1) else member + 4
    return row, col


def isa_a_s8_k32(lane, i):
    group, member = lane >> 2, lane % 4
    row = group if (0 <= i < 4 or 8 <= i < 12) else group + 8
    col = member * 4 + (i & 3) if i < 8 else member * 4 + (i & 3) + 16
    return row, col


def isa_b_s8_k32(lane, i):
    group, member = lane >> 2, lane % 4
    row = member * 4 + (i & 3) if i < 4 else member * 4 + (i & 3) + 16
    return row, group


@pytest.mark.parametrize(
    ("per_register", "isa_a", "isa_b"),
    [
        (2, isa_a_f16_k16, isa_b_f16_k16),
        (1, isa_a_tf32_k8, lambda lane, i: (lane % 4 + 4 * i, lane >> 2)),
        (4, isa_a_s8_k32, isa_b_s8_k32),
    ],
)
def test_operand_maps_are_those_of_the_isa(per_register, isa_a, isa_b):
    for lane in range(32):
        for i in range(4 * per_register):
            register, element = divmod(i, per_register)
            assert fragments.a_fragment(lane, register, element, per_register) == isa_a(lane, i)
        for i in range(2 * per_register):
            register, element = divmod(i, per_register)
            assert fragments.b_fragment(lane, register, element, per_register) == isa_b(lane, i)


def test_a_matrix_places_every_element():
    for registers, per_register in ((4, 2), (2, 2), (4, 1), (2, 1), (4, 4), (2, 4)):
        elements = np.arange(registers * 32 * per_register).reshape(registers, 32, per_register)
        matrix = fragments.a_matrix(elements)
        assert sorted(matrix.reshape(-1)) == list(range(elements.size))
        for register in range(registers):
            for lane in range(32):
                for element in range(per_register):
                    row, k = fragments.a_fragment(lane, register, element, per_register)
                    assert matrix[row, k] == elements[register, lane, element]


@pytest.mark.parametrize("columns", [8, 24, 128])
def test_accumulators_follow_the_wgmma_formula(columns):
    matrix = np.arange(16 * columns).reshape(16, columns)
    held = fragments.accumulator_registers(matrix)
    for lane in range(32):
        for i in range(columns // 2):
            # PTX ISA 9.7.15.5.1, for the first warp of the warpgroup
            row = (lane % 32) // 4 + 8 * ((i // 2) % 2)
            col = 8 * (i // 4) + 2 * (lane % 4) + (i % 2)
            assert held[i, lane] == matrix[row, col]
            assert fragments.accumulator_fragment(lane, i) == (row, col)
            if i < 4:
                assert (row, col) == isa_c(lane, i)
    assert (fragments.accumulator_matrix(held) == matrix).all()
