"""The kernel of patches: its packing by brute force, the kernel in Pallas' interpreter and on a Hopper GPU."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import (
    assert_as_close_as_bfloat16,
    distances,
    drawn,
    interpreted,
    interpreted_elsewhere,
    needs_hopper,
    needs_jax,
    normal,
    on_the_gpu,
    plain,
    value_and_gradients,
)

import sdebnn_hopper
from sdebnn_hopper import patches
from sdebnn_hopper.patches import packing
from sdebnn_hopper.patches.packing import FIRST, FOURTH, LINE, POSITIONS, SECOND, STATE, THIRD, WIDTH

SIDE = 12  # smaller than the kernel's largest image, so that there are rows beyond the image


# ---- by brute force ----


def shifted(rows: np.ndarray, offset: int) -> np.ndarray:
    """rows[p + offset], zero beyond the positions of the image."""
    guard = np.zeros((LINE + 1, rows.shape[1]))
    at = LINE + 1 + offset
    return np.concatenate([guard, rows, guard])[at : at + POSITIONS]


def block(table, matrix, row):
    return matrix[row : row + table.made].T[: table.given] if table.transposed else matrix[row : row + table.given]


def layer(table, matrix, rows, where=None):
    """The sums that a table lists, with the parities as columns."""
    sums = []
    for i, terms in enumerate(table.terms):
        z = sum(
            shifted(rows, term.offset)[:, term.column : term.column + table.given] @ block(table, matrix, term.row)
            for term in terms
        )
        if where is not None:
            row = table.maps[i]
            of_class = matrix[row : row + table.made].T[:16] if table.transposed else matrix[row : row + 16]
            z = z + where @ of_class
        sums.append(z)
    return np.concatenate(sums, 1)


def correlations(table, height, rows, pulled, where):
    """dL/dW of a table: the gradient of each block, from the factors of its terms."""
    out = np.zeros((height, WIDTH))
    for i, terms in enumerate(table.terms):
        d = pulled[:, table.made * i : table.made * (i + 1)]
        for term in terms:
            a = shifted(rows, term.offset)[:, term.column : term.column + table.given]
            out[term.row : term.row + (table.made if table.transposed else table.given)] += (
                d.T @ a if table.transposed else a.T @ d
            )
        row = table.maps[i]
        if table.transposed:
            out[row : row + table.made, :16] += d.T @ where
        else:
            out[row : row + 16] += where.T @ d
    return out


def by_hand(matrices, h, g, dt):
    """One step of one image, and its gradient, by the products that the kernel's tables list."""
    where = packing.marks(SIDE)
    inside = where.sum(1, keepdims=True)
    w1, w2, w3, w4 = matrices
    a1 = np.tanh(layer(FIRST, w1, h, where)) * inside
    a2 = np.tanh(layer(SECOND, w2, a1, where)) * inside
    a3 = np.tanh(layer(THIRD, w3, a2, where)) * inside
    h1 = h + dt * layer(FOURTH, w4, a3, where) * inside
    d4 = dt * g
    d3 = (1 - a3**2) * layer(FOURTH.adjoint, w4, d4) * inside
    d2 = (1 - a2**2) * layer(THIRD.adjoint, w3, d3) * inside
    d1 = (1 - a1**2) * layer(SECOND.adjoint, w2, d2) * inside
    g0 = g + layer(FIRST.adjoint, w1, d1) * inside
    pairs = ((FIRST, h, d1), (SECOND, a1, d2), (THIRD, a2, d3), (FOURTH, a3, d4))
    heights = packing.HEIGHTS
    return h1, g0, [correlations(t, n, x, d, where) for (t, x, d), n in zip(pairs, heights, strict=True)]


def test_the_products_that_the_tables_list_are_the_plain_layers_and_their_gradients():
    layers, h0, seed = drawn(3, 32, 2), normal(1, SIDE, SIDE, 3), jnp.cos(normal(1, SIDE, SIDE, 3))
    last = jax.tree.map(lambda leaf: leaf.at[0].set(0), layers)  # only the second sees time: t_0 = 0
    matrices = jax.jit(packing.packed)(last)
    assert [matrix.shape[1:] for matrix in matrices] == [(height, WIDTH) for height in packing.HEIGHTS]
    h, g = (np.float64(packing.rows_of(each)[0]) for each in (h0, seed))
    h1, g0, gradients = by_hand([np.float64(matrix[1]) for matrix in matrices], h, g, 0.5)

    def to_layers(cotangents):
        return jax.linear_transpose(packing.packed, last)(cotangents)[0]

    padded = tuple(jnp.stack([jnp.zeros_like(d), d]) for d in (jnp.asarray(each, jnp.float32) for each in gradients))
    rows = (jnp.asarray(each, jnp.float32)[None] for each in (h1, g0))
    ours = (*(packing.images_of(each, SIDE) for each in rows), jax.jit(to_layers)(padded))
    with jax.default_matmul_precision("highest"):  # by default a GPU rounds the factors of float32 products
        exact_h1, exact_g0, exact = value_and_gradients(plain)(last, h0, seed)
    exact = jax.tree.map(lambda leaf: leaf.at[0].set(0), exact)  # ours leaves out the gradients of the first step
    # The plain path sums up to 288 products in float32, each rounded by 2^-24.
    for name, error in distances(ours, (exact_h1, exact_g0, exact), h0, seed).items():
        assert error < 2e-5, name


@pytest.mark.parametrize("side", [4, 12, 28])
def test_rows_hold_all_pixels_and_every_position_in_the_image_has_one_class(side):
    images = normal(2, side, side, 3)
    rows = packing.rows_of(images)
    assert rows.shape == (2, POSITIONS, STATE)
    np.testing.assert_array_equal(packing.images_of(rows, side), images)
    assert (np.asarray(rows) != 0).any((0, 2)).sum() == (side // 2) ** 2  # all other rows are zero
    of_class = packing.marks(side)
    np.testing.assert_array_equal(of_class.sum(1), (np.asarray(rows) != 0).any((0, 2)))
    inner = max(side // 2 - 2, 0)
    np.testing.assert_array_equal(of_class.sum(0)[4:13], np.outer([1, inner, 1], [1, inner, 1]).ravel())


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="on a GPU the kernel runs")
def test_compiled_for_a_processor_it_is_the_plain_function_with_its_gradient():
    layers, h0 = drawn(3, 32, 2), normal(2, 4, 4, 3)
    seed = jnp.cos(h0)

    def ours(layers, h0):
        return sdebnn_hopper.euler(layers, h0, plain)

    exact = value_and_gradients(plain)(layers, h0, seed)
    found = value_and_gradients(ours)(layers, h0, seed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, exact)
    np.testing.assert_allclose(jax.jit(ours)(layers, h0), exact[0], rtol=1e-5, atol=1e-6)


@needs_jax
def test_interpreted_the_kernels_are_as_near_to_float32_as_xla_in_bfloat16():
    assert_as_close_as_bfloat16(*interpreted_elsewhere(__file__))


@needs_hopper
@pytest.mark.parametrize("side", [12, 28])
def test_on_a_gpu_the_kernels_are_as_near_to_float32_as_xla_in_bfloat16(side):
    assert_as_close_as_bfloat16(*on_the_gpu(drawn(3, 32, 6), normal(3, side, side, 3)))


if __name__ == "__main__":
    from sdebnn_hopper.patches import backward

    backward.MAX_STEPS_A_LAUNCH = 2  # so that four steps take two launches of the gradient
    print(json.dumps(interpreted(patches, drawn(3, 32, 4), normal(1, SIDE, SIDE, 3))))
