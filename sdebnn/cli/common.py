"""What the commands share."""

import jax


def key_of(seed: int) -> jax.Array:
    """The key that a seed names."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed} must be a whole number from 0 to {2**32 - 1}.")
    return jax.random.key(seed)
