"""Reading PTX: ``read(text)`` gives a ``Module`` of plain data."""

from __future__ import annotations

from cakert.sim.ptx.reader import read

__all__ = ["read"]
