"""What a row of the table is: a net, and how to train and to judge it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import PRNGKeyArray


class Row(NamedTuple):
    """A net, made from a key, the arguments of ``fit`` to train it with, and the draws that judge it."""

    name: str
    net: Callable[[PRNGKeyArray], Any]
    training: dict[str, Any]
    draws: int = 1
