"""The options of ``fit``, grouped: objective, batches, optimiser, validation, checkpoints.

Each group is checked when it is made, so that an error names the option before any data are read.
"""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, get_args

from jaxtyping import Array

from sdebnn.checks import check_callable, check_choice, check_count, check_positive, plain_number, shown
from sdebnn.data import Inputs
from sdebnn.train.checkpoints import RunFolder
from sdebnn.train.optimizers import UpdateRule
from sdebnn.train.validation import ShouldStop, Watch


class _Options:
    """Converts NumPy scalars to Python numbers, which do not become trainable parameters and compare by value."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            object.__setattr__(self, field.name, plain_number(getattr(self, field.name)))
        self._check()

    def _check(self) -> None:
        """Refuse values that make no sense."""

    def _check_optional_counts(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None:
                check_count(name, value)


@dataclasses.dataclass(frozen=True)
class Objective(_Options):
    """What is maximised: the ELBO, estimated from draws of the weights.

    Each step takes ``draws`` samples of the weights, ``draws_at_once`` of them in parallel (default: all; 1 suits
    convolutions). ``kl_weight=1`` is the ELBO. The KL weight rises from a thousandth of its value over the first
    ``kl_warmup`` of the run (default: 0.3 of it if w_0 is inferred, 0 if not or if the model starts near its posterior,
    as ``SDEBNN.mlp`` does), since a model that pays the full KL from the start may learn nothing at all.
    ``roughness_weight`` times the roughness of the hidden units is added to the loss -ELBO / N, for dynamics that can
    be solved accurately in few steps, at some cost in fit. Every ``monitor_every`` epochs, the variance of the gradient
    under each estimator of the KL is measured, to show whether "stl" reduces it.

        cold = Objective(draws=2, kl_weight=0.5)
        smooth = Objective(roughness_weight=0.1)
    """

    draws: int = 4
    draws_at_once: int | None = None
    kl_weight: float = 1.0
    kl_warmup: float | None = None
    roughness_weight: float = 0.0
    monitor_every: int | None = None

    def _check(self) -> None:
        check_count("draws", self.draws)
        self._check_optional_counts("draws_at_once", "monitor_every")
        check_positive("kl_weight", self.kl_weight, or_zero=True)
        check_positive("roughness_weight", self.roughness_weight, or_zero=True)
        if self.kl_warmup is not None:
            check_positive("kl_warmup", self.kl_warmup, or_zero=True)
            if self.kl_warmup > 1:
                raise ValueError(f"kl_warmup={self.kl_warmup} is not a share of the run: pass a number from 0 to 1.")


@dataclasses.dataclass(frozen=True)
class Batches(_Options):
    """How the examples are divided into steps.

    With ``size=None``, every step takes all examples. Otherwise the examples are shuffled in each epoch, and those that
    do not fill a batch are left out of that epoch. ``accumulate`` splits each batch into that many parts, which are
    processed one after the other with draws of their own. ``augment(x, key=key)`` transforms each batch on the device.
    Data of more than ``memory_limit`` bytes, such as a memory map, are read ahead of the steps, within this limit.

        batches = Batches(128, accumulate=2)
        views = Batches(128, augment=sdebnn.data.RandomView(2, flip=True))
    """

    size: int | None = None
    accumulate: int = 1
    augment: Callable[..., Array] | None = None
    memory_limit: int = 2**31

    def _check(self) -> None:
        self._check_optional_counts("size")
        check_count("accumulate", self.accumulate)
        check_count("memory_limit", self.memory_limit)
        if self.augment is not None:
            check_callable("augment", self.augment, "sdebnn.data.RandomView(2)")

    def size_for(self, examples: int) -> int:
        """The number of examples in a batch of a data set."""
        size = examples if self.size is None else min(self.size, examples)
        if size % self.accumulate:
            raise ValueError(f"accumulate={self.accumulate} does not divide the batch of {size}: choose one that does.")
        return size


@dataclasses.dataclass(frozen=True)
class Optimizer(_Options):
    """How the parameters move.

    The default is Adam, with ``learning_rate`` decayed to zero along a cosine. ``rule`` may be any optimiser of Optax
    instead, or a function that makes one from the number of steps. ``clip`` bounds the norm of the gradient. ``ema`` is
    the decay of a moving average of the parameters; if given, the average is validated and returned. A step with
    numbers that are not finite is skipped; after ``max_skipped`` in a row, training stops with a warning.

        import optax

        adam = Optimizer(1e-2, clip=10.0, ema=0.99)
        momentum = Optimizer(rule=optax.sgd(1e-3, momentum=0.9))
    """

    learning_rate: float = 2e-2
    rule: UpdateRule | None = None
    clip: float | None = None
    ema: float | None = None
    max_skipped: int = 10

    def _check(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        if self.clip is not None:
            check_positive("clip", self.clip)
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema={shown(self.ema)} must be between 0 and 1, such as 0.998; None keeps no average.")
        check_count("max_skipped", self.max_skipped)


@dataclasses.dataclass(frozen=True)
class Validation(_Options):
    """Held-out examples ``x`` with targets ``y``, scored every ``every`` epochs.

        rest = Validation(x[1::2], y[1::2], every=5, patience=3)
        fitted = fit(
            model, likelihood, x[::2], y[::2], key=key, epochs=20, validation=rest
        )

    By default they are scored after every epoch, or after every 50 if each step takes all examples. With ``patience``,
    training stops after that many validations in a row without an improvement of ``watch``, "nll" or "elbo", and the
    best parameters are returned. With ``at_start``, the parameters that training starts from are scored, too, and may
    be the best: for a model that was trained before. ``should_stop(epoch, scores)`` is called after each validation; if
    it returns True, training stops there.
    """

    x: Inputs
    y: Inputs
    every: int | None = None
    watch: Watch = "nll"
    patience: int | None = None
    at_start: bool = False
    should_stop: ShouldStop | None = None

    def _check(self) -> None:
        self._check_optional_counts("every", "patience")
        if self.should_stop is not None:
            check_callable("should_stop", self.should_stop, "lambda epoch, scores: scores.nll > 2")
        check_choice("watch", self.watch, get_args(Watch))


@dataclasses.dataclass(frozen=True)
class Checkpoints(_Options):
    """Where checkpoints and metrics are written, and whether to resume from them.

        checkpoints = Checkpoints("run", resume=True)
        fitted = fit(
            model, likelihood, x, y, key=key, epochs=20, checkpoints=checkpoints
        )

    ``folder`` is created if it does not exist, and ``resume=True`` starts at the beginning if it is empty. A checkpoint
    is written every ``every`` seconds and at the end. The last ``keep`` checkpoints and the last good one are kept, and
    metrics are written to ``metrics.jsonl``. Ctrl-C, SIGTERM and SIGHUP save first. ``resume=True`` continues from the
    last checkpoint and reaches the same numbers as an uninterrupted run. It refuses another model, likelihood,
    optimiser, setting or data set. ``tensorboard=True`` writes the metrics for TensorBoard, too.
    """

    folder: str | Path | RunFolder
    resume: bool = False
    every: float = 60.0
    keep: int = 2
    tensorboard: bool = False

    def _check(self) -> None:
        check_positive("every", self.every, or_zero=True)
        check_count("keep", self.keep)

    @property
    def path(self) -> Path:
        """The folder's path."""
        return self.folder.path if isinstance(self.folder, RunFolder) else Path(self.folder)

    def opened(self) -> AbstractContextManager[RunFolder]:
        """The folder, locked for this run. A ``RunFolder`` that is open already stays open afterwards."""
        if isinstance(self.folder, RunFolder):
            return nullcontext(self.folder)
        return RunFolder(Path(self.folder), keep=self.keep, tensorboard=self.tensorboard)


class Recipe(NamedTuple):
    """How long and by which options to train; ``fit(..., **recipe.options())`` does."""

    epochs: int = 300
    objective: Objective = Objective()
    batches: Batches = Batches()
    optimizer: Optimizer = Optimizer()

    def options(self) -> dict[str, Any]:
        """The options as arguments of ``fit``."""
        return self._asdict()

    def changed(
        self, *, epochs: int | None = None, batch_size: int | None = None, kl_weight: float | None = None
    ) -> "Recipe":
        """The same recipe with the options that are given."""
        objective, batches = self.objective, self.batches
        if kl_weight is not None:
            objective = dataclasses.replace(objective, kl_weight=kl_weight)
        if batch_size is not None:
            batches = dataclasses.replace(batches, size=batch_size)
        return Recipe(self.epochs if epochs is None else epochs, objective, batches, self.optimizer)
