"""The places of a sweep, and which attempt counts at each."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from optuna.trial import FrozenTrial, TrialState

from sdebnn.sweeps.results import Row

RETRY_OF, ERROR, PRUNED_AT, SECONDS = "retry_of", "error", "pruned_at", "seconds"  # names of attributes of trials
STATES = {
    TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting", TrialState.FAIL: "waiting",
}  # fmt: skip


class Slot(NamedTuple):
    """A place in a sweep, and the attempts at it, the last of which counts."""

    number: int
    attempts: tuple[FrozenTrial, ...]

    @property
    def last(self) -> FrozenTrial:
        """The last attempt."""
        return self.attempts[-1]

    @property
    def is_failed(self) -> bool:
        """Whether it failed by an error of its own."""
        return self.last.state == TrialState.FAIL and ERROR in self.last.user_attrs

    @property
    def is_lost(self) -> bool:
        """Whether its worker was stopped or killed."""
        return self.last.state == TrialState.FAIL and not self.is_failed

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.is_failed or self.last.state in (TrialState.COMPLETE, TrialState.PRUNED)

    def row(self) -> Row:
        """This trial in the table of results."""
        last = self.last
        curve = sorted((epoch, nll) for epoch, nll in last.intermediate_values.items() if math.isfinite(nll))
        score = last.value if last.state == TrialState.COMPLETE else curve[-1][1] if curve else None
        return Row(
            self.number, "failed" if self.is_failed else STATES[last.state], dict(last.params), score, tuple(curve),
            last.user_attrs.get(SECONDS), len(self.attempts), f"trials/{self.number:04d}",
            last.user_attrs.get(ERROR, ""),
        )  # fmt: skip


def slots(trials: Iterable[FrozenTrial]) -> list[Slot]:
    """The places of a sweep, in their order. Of several attempts that follow the same one, the first counts."""
    ordered = sorted(trials, key=lambda trial: trial.number)
    after: dict[int, FrozenTrial] = {}
    for trial in ordered:
        if RETRY_OF in trial.user_attrs:
            after.setdefault(trial.user_attrs[RETRY_OF], trial)
    found = []
    for number, first in enumerate(trial for trial in ordered if RETRY_OF not in trial.user_attrs):
        attempts = [first]
        while attempts[-1].number in after:
            attempts.append(after[attempts[-1].number])
        found.append(Slot(number, tuple(attempts)))
    return found
