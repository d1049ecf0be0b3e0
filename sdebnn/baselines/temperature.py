"""Temperature scaling (Guo et al. 2017): a trained model, made less or more certain by one number.

    T = argmin  -Σ log E_w[ p(y | tempered(outputs, T)) ]   on held-out examples

For classes, tempered(logits, T) = logits / T.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key, Num, PRNGKeyArray

from sdebnn.calibration import HeldOut, calibrated
from sdebnn.checks import as_inputs, check_count
from sdebnn.contract import AbstractModel, Data, LayerLine, check_trainable, draw_keys, parameter_count, solutions
from sdebnn.integrate import Solution
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models import as_model

EXAMPLES_AT_ONCE = 1000


class TemperatureScaled(AbstractModel):
    """Any model, with its confidence calibrated after training on the validation set that ``fit`` is given.

        net = baselines.TemperatureScaled(eqx.nn.MLP(2, 2, 16, 1, key=key))
        points, labels = sdebnn.data.toy.moons(200, noise=0.3, key=key)
        held_out = Validation(points[150:], labels[150:])
        points, labels = points[:150], labels[:150]
        fitted = fit(net, Categorical(), points, labels, key=key, epochs=20, validation=held_out)
        print(jnp.exp(fitted.model.log_temperature))

    The temperature suits the average of ``draws`` draws; one draw is enough for a deterministic model. The likelihood
    must define what a temperature does: ``Categorical``, or a law that reads its scale from the outputs.
    """

    model: AbstractModel
    likelihood: AbstractLikelihood | None  # defines what the temperature does; None until it is chosen
    log_temperature: Float[Array, ""]
    draws: int = eqx.field(static=True)

    def __init__(self, model: AbstractModel | Callable[[Array], Array], *, draws: int = 1):
        check_count("draws", draws)
        self.model, self.draws = as_model(model), int(draws)
        self.likelihood = None
        self.log_temperature = jnp.zeros(())

    def draw_keys(self, key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
        """The keys of the model's draws."""
        return self.model.draw_keys(key, draws)

    def before_training(self, likelihood: AbstractLikelihood, data: Data) -> "TemperatureScaled":
        """The same model as its training starts, scaled."""
        model = self.model.before_training(likelihood, data)
        return self if model is self.model else eqx.tree_at(lambda scaled: scaled.model, self, model)

    def for_training(self) -> AbstractModel:
        """The model without a temperature."""
        return self.model.for_training()

    @property
    def learns_after_training(self) -> bool:
        """True: the temperature is chosen after training."""
        return True

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The model inside."""
        return LayerLine(type(self).__name__, parameter_count(self), inside=(self.model.layer_line(x),))

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The solution of the model, with its outputs tempered once the temperature is chosen."""
        part = self.model.solve(x, key=key, with_roughness=with_roughness)
        if self.likelihood is None:
            return part
        temperature = jnp.exp(lax.stop_gradient(self.log_temperature)).astype(part.outputs.dtype)
        return part._replace(outputs=self.likelihood.tempered(part.outputs, temperature))

    def check_trainable(self, likelihood: AbstractLikelihood, *, has_validation: bool) -> None:
        """Refuse a likelihood that cannot be tempered, and a missing validation set."""
        check_trainable(self.model, likelihood, has_validation=has_validation)
        likelihood.tempered(jnp.zeros((1, 2)), 1.0)  # raises the error of a likelihood that cannot be tempered
        if not has_validation:
            raise ValueError("a temperature is chosen on held-out examples: pass validation=Validation(x, y).")

    def after_training(
        self,
        likelihood: AbstractLikelihood,
        data: Data,
        *,
        validation: Data | None,
        key: PRNGKeyArray,
        say: Callable[[str], None],
    ) -> "TemperatureScaled":
        """The same model at the best temperature for the validation set."""
        self.check_trainable(likelihood, has_validation=validation is not None)
        assert validation is not None
        model = self.model.after_training(likelihood, data, validation=validation, key=key, say=say)
        keys = draw_keys(key, self.draws, model)
        rows = range(0, validation[0].shape[0], EXAMPLES_AT_ONCE)
        parts = [
            solutions(model, as_inputs("x", validation[0][i : i + EXAMPLES_AT_ONCE]), keys, 1).outputs for i in rows
        ]
        one, y, weights = likelihood.split_weights(validation[1])
        outputs = jnp.concatenate(parts, axis=1)
        found = calibrated(one, [HeldOut(outputs, y, np.ones(len(y)) if weights is None else weights)])
        say(
            f"Temperature {found.temperature:.3f}: {found.nll_before:.4f} -> {found.nll:.4f} nats on held-out examples."
        )
        log_temperature = jnp.log(jnp.asarray(found.temperature, self.log_temperature.dtype))
        return eqx.tree_at(
            lambda scaled: (scaled.model, scaled.likelihood, scaled.log_temperature), self,
            (model, one, log_temperature), is_leaf=lambda node: node is None,
        )  # fmt: skip
