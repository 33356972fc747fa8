"""Where the registers, constants and special registers of a kernel stand in a warp's file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["CARRY", "RegisterLayout"]

# A register that nobody wrote reads as a NaN, as f32 and as f64, that is easy to recognise.
POISON = 0x7FF0DEAD

# Predicate 0 is the carry flag of add.cc and its kin.
CARRY = 0

_ROW_BYTES = 128


class RegisterLayout:
    """Allocates rows of 32 lanes: 128 bytes up to 32 bits a lane, 256 bytes for 64.

    A register of 64 bits has the number of its 256-byte row, any other of its 128-byte row.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._predicates: dict[str, int] = {}
        self._constants: dict[tuple[int, int], int] = {}
        self._specials: dict[str, int] = {}
        self._used = 0
        self._spare: list[int] = []
        self.scratch64 = self.allocate(64)
        self.scratch32 = 2 * self.scratch64
        self._num_predicates = 1  # the carry flag
        self.scratch_predicate = self._new_predicate()

    def allocate(self, bits: int) -> int:
        """A fresh row; a register of 128 bits gets two consecutive rows of 64."""
        if bits <= 32:
            if self._spare:
                return self._spare.pop()
            self._used += 1
            return self._used - 1
        if self._used % 2:
            self._spare.append(self._used)
            self._used += 1
        row = self._used // 2
        self._used += bits // 32
        return row

    def register(self, name: str, bits: int) -> int:
        """Row of a register."""
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = self.allocate(bits)
        return row

    def predicate(self, name: str) -> int:
        """Number of a predicate register."""
        number = self._predicates.get(name)
        if number is None:
            number = self._predicates[name] = self._new_predicate()
        return number

    def constant(self, value: int, bits: int) -> int:
        """Row that holds a value in every lane."""
        wide = 64 if bits > 32 else 32
        value &= (1 << bits) - 1
        row = self._constants.get((value, wide))
        if row is None:
            row = self._constants[value, wide] = self.allocate(wide)
        return row

    def special(self, name: str) -> int:
        """Row (of 32 bits) of a special register that keeps its value during a launch."""
        row = self._specials.get(name)
        if row is None:
            row = self._specials[name] = self.allocate(32)
        return row

    @property
    def specials(self) -> list[tuple[str, int]]:
        """Special registers in use, with their rows."""
        return list(self._specials.items())

    @property
    def num_predicates(self) -> int:
        """Predicates in use, hidden ones included."""
        return self._num_predicates

    def template(self) -> npt.NDArray[np.uint8]:
        """Initial bytes of a register file: poison, and the constants."""
        words = np.full((self._used + self._used % 2, _ROW_BYTES // 4), POISON, np.uint32)
        for (value, bits), row in self._constants.items():
            if bits == 64:
                words.reshape(-1).view(np.uint64).reshape(-1, 32)[row] = value
            else:
                words[row] = value
        return words.reshape(-1).view(np.uint8)

    def _new_predicate(self) -> int:
        self._num_predicates += 1
        return self._num_predicates - 1
