"""Random views of the inputs as a part of a model: each draw looks at the images in its own way."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Num, PRNGKeyArray

from sdebnn.checks import as_inputs, check_instance, check_key
from sdebnn.contract import AbstractModel, LayerLine
from sdebnn.data import RandomView
from sdebnn.integrate import Solution


class Views(AbstractModel):
    """A layer that shifts and mirrors all images of a batch in one way, which the key names; its KL is 0.

        seen = SDEBNN((Views(sdebnn.data.RandomView(1, flip=True)), *net.layers))
        logits, kl = seen(images, key=key)

    As the first layer of a net it makes a prediction, which averages over draws, an average over views, too. A net that
    was trained on such views loses nothing by it, and errors that depend on the view average out.
    """

    view: RandomView

    def __check_init__(self):
        check_instance("view", self.view, RandomView, "a random view", "RandomView(1, flip=True)")

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The view."""
        mirrored = ", mirrored or not" if self.view.flip else ""
        return LayerLine(f"Views shifted by up to {self.view.shift}{mirrored}", 0)

    def as_candidate(self) -> "Views":
        """The model itself."""
        return self

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The images, all viewed in the way that the key names."""
        check_key(key)
        x = as_inputs("x", x)
        outputs = jax.vmap(lambda image: self.view(image[None], key=key)[0])(x)
        return Solution(outputs, jnp.zeros((), outputs.dtype))
