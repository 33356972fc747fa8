"""The XOR of each swizzle mode against the tables of the ISA."""

import numpy as np
import pytest
from copies_reference import swizzled

from cakert.sim.copies.boxes import shared_image
from cakert.sim.copies.swizzle import SWIZZLES, granule, swizzle_address


@pytest.mark.parametrize("mode", SWIZZLES)
def test_every_byte_lies_where_the_table_puts_it(mode):
    addresses = np.arange(1024, 1024 + 4096)
    expected = [swizzled(int(a), mode) for a in addresses]
    np.testing.assert_array_equal(swizzle_address(addresses, mode), expected)
    assert swizzle_address(2048 + 128 + 8, mode) == swizzled(2048 + 128 + 8, mode)


@pytest.mark.parametrize("mode", SWIZZLES)
def test_a_mode_is_its_own_inverse_and_keeps_its_granule(mode):
    addresses = np.arange(8192)
    there = swizzle_address(addresses, mode)
    np.testing.assert_array_equal(swizzle_address(there, mode), addresses)
    units = there.reshape(-1, granule(mode))
    assert (np.diff(units, axis=1) == 1).all()


@pytest.mark.parametrize("mode", SWIZZLES)
@pytest.mark.parametrize("start", [1024, 1024 + 128, 2048 + 384, 1024 + 896])
@pytest.mark.parametrize("nbytes", [128, 1280, 4096, 96, 208])
def test_the_image_of_a_box(mode, start, nbytes):
    image = shared_image(nbytes, start % 1024, mode, 128)
    dense = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    memory = np.zeros(16384, np.uint8)
    place = image.place(start)
    if isinstance(place, tuple):
        place = place[0] + np.arange(place[1])
    memory[place] = image.arrange(dense)
    expected = np.zeros(16384, np.uint8)
    for i in range(nbytes):
        expected[swizzled(start + i, mode)] = dense[i]
    np.testing.assert_array_equal(memory, expected)
    first, extent = image.range(start)
    assert first <= place.min() and place.max() < first + extent
