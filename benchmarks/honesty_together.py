"""All fits of ``honesty.py`` in one program, on a GPU: training steps of ``fit``, batched over problems.

    python benchmarks/honesty_together.py --out FOLDER

Every problem is prepared as ``fit`` prepares it, and trained by the compiled loop of ``fit`` with the same key. Data
are filled up to equal size, and rows that fill up do not count.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from honesty import EPOCHS, SEEDS, KnownNoise, scored
from honesty_problems import PROBLEMS, SIZES, Problem, problem, waves_with_gap

import sdebnn
from sdebnn.train.batches import StepBatches
from sdebnn.train.collapse import default_warmup
from sdebnn.train.loop import Call, Job, TrainState, advance
from sdebnn.train.optimizers import optimizer_of
from sdebnn.train.stacks import stacked, unstacked


class Filled(KnownNoise):
    """The likelihood of targets of which some are NaN, and do not count."""

    def log_prob(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        missing = jnp.isnan(y)
        return jnp.where(missing[..., 0], 0.0, super().log_prob(outputs, jnp.where(missing, 0.0, y)))


def prepared(of: Problem, key: jax.Array) -> tuple[Any, Any, jax.Array, jax.Array]:
    """Parameters, what is not trained, and the data."""
    x, y = (jnp.asarray(column, jnp.float32)[:, None] for column in (of.x, of.y))
    likelihood = Filled(of.noise)
    model = sdebnn.SDEBNN.mlp(1, 1, solver=sdebnn.FixedGrid(20), key=key).before_training(likelihood, (x, y))
    fill = max(SIZES) - len(x)
    x, y = jnp.pad(x, ((0, fill), (0, 0)), "edge"), jnp.pad(y, ((0, fill), (0, 0)), constant_values=jnp.nan)
    return *eqx.partition((model, likelihood), eqx.is_inexact_array), x, y


def fits(folder: Path, epochs: int) -> None:
    """Fit everything, and write a line for each fit."""
    jobs = [(problem(i), i) for i in range(PROBLEMS)] + [(waves_with_gap(), seed) for seed in range(SEEDS)]
    keys = [jax.random.split(jax.random.key(seed), 3) for _, seed in jobs]
    ready = [prepared(of, key[0]) for (of, _), key in zip(jobs, keys, strict=True)]
    parameters, x, y = (jax.tree.map(lambda *each: jnp.stack(each), *(r[i] for r in ready)) for i in (0, 2, 3))
    rest, like = ready[0][1], jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), ready[0][0])
    assert all(eqx.tree_equal(rest, each[1]) for each in ready)
    plain = sdebnn.Objective()
    rule = optimizer_of(None, sdebnn.Optimizer().learning_rate, epochs, None)
    job = Job(
        rule, max(SIZES), max(SIZES), 1, plain.draws, plain.draws_at_once, plain.kl_weight,
        default_warmup(eqx.combine(ready[0][0], rest)[0]), 0.0, None, None, sdebnn.Optimizer().max_skipped, epochs,
    )  # fmt: skip

    def one(parameters: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> tuple[Any, Any]:
        zero = jnp.zeros((), jnp.int32)
        state = stacked(TrainState(parameters, rule.init(parameters), None, zero, zero, zero), like)
        number = jnp.asarray(epochs, jnp.int32)
        state, log = advance(Call(job, like, rest, StepBatches(x, y, None, zero), key, number, number), state)
        return unstacked(state.parameters, like), log

    clock = time.perf_counter()
    program = jax.jit(jax.vmap(one)).lower(parameters, x, y, jnp.stack([key[1] for key in keys])).compile()
    print(f"compiled in {time.perf_counter() - clock:.0f} s", flush=True)
    clock = time.perf_counter()
    trained, log = jax.block_until_ready(program(parameters, x, y, jnp.stack([key[1] for key in keys])))
    seconds = time.perf_counter() - clock
    print(f"{len(jobs)} fits in {seconds:.0f} s, {np.asarray(log.skipped).sum()} steps skipped", flush=True)
    with (folder / "ours.jsonl").open("w") as file:
        for i, ((of, seed), key) in enumerate(zip(jobs, keys, strict=True)):
            model, _ = eqx.combine(jax.tree.map(lambda leaf, i=i: leaf[i], trained), rest)
            facts = {"seconds": round(seconds / len(jobs), 2), "skipped": int(log.skipped[i].sum())}
            file.write(json.dumps(facts | scored(model, of, seed, key[2])) + "\n")
    print(f"scored after {time.perf_counter() - clock:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    chosen = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "highest")  # as on a processor
    fits(chosen.out, chosen.epochs)
