"""What a path of a warp waits for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

__all__ = ["Wait"]


def _always() -> bool:
    return True


class Wait:
    """A reason for a path of a warp to stand still.

    Parameters
    ----------
    ready
        Polled by the machine; must be cheap and, except for faults, without effects.
    describe
        A clause for the deadlock report: what is waited for, at which phase, who would have to
        arrive.
    finish
        Called once when ``ready`` has returned True, before the path goes on after its
        instruction; writes the results.
    needs
        What may end the wait, operations or what their ``signals`` name: lets the lazy schedule
        complete that and leave all else in flight.
    """

    __slots__ = ("describe", "finish", "needs", "ready")

    def __init__(
        self,
        ready: Callable[[], bool],
        describe: Callable[[], str],
        finish: Callable[[], None] | None = None,
        needs: Callable[[], Iterable[Hashable]] | None = None,
    ) -> None:
        self.ready = ready
        self.describe = describe
        self.finish = finish
        self.needs = needs

    @classmethod
    def pause(
        cls,
        describe: Callable[[], str],
        finish: Callable[[], None] | None = None,
        needs: Callable[[], Iterable[Hashable]] | None = None,
    ) -> Wait:
        """A wait that only ends the slice of the warp: a test that failed, a nap."""
        return cls(_always, describe, finish, needs)
