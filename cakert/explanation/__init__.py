"""Why a mask takes as long as it does: counts, schedule, a model of the time, a picture."""

from __future__ import annotations

from cakert.explanation.describe import explain
from cakert.explanation.records import Explanation

__all__ = ["Explanation", "explain"]
