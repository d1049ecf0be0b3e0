"""Temperature scaling (Guo et al. 2017): logits divided by one number, chosen on held-out examples.

T = argmin  -Σ log E_w[ softmax(logits / T) ]_y
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key, PRNGKeyArray

from sdebnn import metrics
from sdebnn.checks import as_inputs, check_count
from sdebnn.contract import check_conditioning, conditioned, draw_keys, solutions, solve, training
from sdebnn.integrate import Solution
from sdebnn.likelihoods import Categorical, Likelihood
from sdebnn.models import as_model

ROWS = 1000  # at once
RANGE = (0.05, 20.0)


class TemperatureScaled(eqx.Module):
    """Any classifier whose confidence is put right on the validation set that ``fit`` is given, once it is trained.

    ``draws`` of its weights are averaged in that; 1 does for a model without uncertainty.
    """

    model: Any
    log_temperature: Float[Array, ""]
    draws: int = eqx.field(static=True)

    def __init__(self, model: Any, *, draws: int = 1):
        check_count("draws", draws)
        self.model, self.draws = as_model(model), int(draws)
        self.log_temperature = jnp.zeros(())

    def draw_keys(self, key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
        """The names of the model's draws."""
        return draw_keys(key, draws, self.model)

    def training(self) -> Any:
        """The model itself: at temperature 1."""
        return training(self.model)

    def __call__(
        self, x: Float[Array, "example *input"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "example class"], Float[Array, ""]]:
        return self.solve(x, key=key)[:2]

    def solve(self, x: Float[Array, "example *input"], *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The model's own solution, its logits divided."""
        part = solve(self.model, x, key=key, rough=rough)
        temperature = jnp.exp(lax.stop_gradient(self.log_temperature)).astype(part.outputs.dtype)
        return part._replace(outputs=part.outputs / temperature)

    def check_conditioning(self, likelihood: Likelihood, validation: Any) -> None:
        """Refuse what has no logits, or no examples to choose a temperature on."""
        check_conditioning(self.model, likelihood, validation)
        if not isinstance(likelihood, Categorical):
            raise ValueError(f"likelihood={type(likelihood).__name__}() has no logits to scale: use Categorical().")
        if validation is None:
            raise ValueError("a temperature is chosen on held-out examples: pass validation=(x, y).")

    def conditioned(
        self,
        likelihood: Likelihood,
        x: Any,
        y: Array,
        *,
        validation: tuple[Any, Array] | None,
        key: PRNGKeyArray,
        say: Callable[[str], None],
    ) -> "TemperatureScaled":
        """The same model at the temperature that suits the validation set best."""
        from scipy import optimize

        self.check_conditioning(likelihood, validation)
        assert validation is not None
        model = conditioned(self.model, likelihood, x, y, validation=validation, key=key, say=say)
        keys = draw_keys(key, self.draws, model)
        rows = range(0, validation[0].shape[0], ROWS)
        parts = [solutions(model, as_inputs("x", validation[0][i : i + ROWS]), keys, 1).outputs for i in rows]
        logits, labels = jnp.concatenate(parts, axis=1), validation[1]

        @jax.jit
        def at(log_temperature: Array, logits: Array, labels: Array) -> Array:
            return metrics.nll(likelihood.log_prob(logits / jnp.exp(log_temperature), labels))

        def loss(log_temperature: float) -> float:
            return float(at(jnp.asarray(log_temperature), logits, labels))

        found: Any = optimize.minimize_scalar(loss, bounds=np.log(RANGE), method="bounded")
        say(f"Temperature {np.exp(found.x):.3f}: {loss(0.0):.4f} -> {found.fun:.4f} nats on held-out examples.")
        log_temperature = jnp.asarray(found.x, self.log_temperature.dtype)
        return eqx.tree_at(lambda scaled: (scaled.model, scaled.log_temperature), self, (model, log_temperature))
