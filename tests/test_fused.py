"""The fused kernels' door, and the kernel of patches: by brute force, by Pallas' interpreter, on a GPU that has it."""

import json
import os
import queue
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import (
    ON,
    close_as_half_precision_goes,
    distances,
    drawn,
    interpreted,
    normal,
    on_the_gpu,
    plain,
    value_and_gradients,
)

from sdebnn.convolutions import fused
from sdebnn.convolutions.fused import patches
from sdebnn.convolutions.fused.patches import packing
from sdebnn.convolutions.fused.patches.packing import FIRST, FOURTH, LINE, POSITIONS, SECOND, STATE, THIRD, WIDTH

SIDE = 12  # of images smaller than the kernel's largest, so that rows beyond the image are there


# ---- by brute force ----


def shifted(rows: np.ndarray, offset: int) -> np.ndarray:
    """rows[p + offset], zero outside of the image's positions."""
    guard = np.zeros((LINE + 1, rows.shape[1]))
    at = LINE + 1 + offset
    return np.concatenate([guard, rows, guard])[at : at + POSITIONS]


def block(table, matrix, row):
    return matrix[row : row + table.made].T[: table.given] if table.transposed else matrix[row : row + table.given]


def layer(table, matrix, rows, where=None):
    """The sums of a table, parities side by side."""
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
    """dL/dW of a table: each block's, from what its terms multiply."""
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
    """One step of one image, and its gradient, as the kernels' tables say."""
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


def test_the_packed_layers_summed_as_the_tables_say_are_the_plain_ones_and_their_gradients():
    layers, h0, seed = drawn(3, 32, 2), normal(1, SIDE, SIDE, 3), jnp.cos(normal(1, SIDE, SIDE, 3))
    last = jax.tree.map(lambda leaf: leaf.at[0].set(0), layers)  # at t = 0 time is not seen: the second step counts
    matrices = jax.jit(packing.packed)(last)
    assert [matrix.shape[1:] for matrix in matrices] == [(height, WIDTH) for height in packing.HEIGHTS]
    h, g = (np.float64(packing.rows_of(each)[0]) for each in (h0, seed))
    h1, g0, gradients = by_hand([np.float64(matrix[1]) for matrix in matrices], h, g, 0.5)
    to_layers = jax.linear_transpose(packing.packed, last)
    padded = tuple(jnp.stack([jnp.zeros_like(d), d]) for d in (jnp.asarray(each, jnp.float32) for each in gradients))
    rows = (jnp.asarray(each, jnp.float32)[None] for each in (h1, g0))
    ours = (*(packing.images_of(each, SIDE) for each in rows), to_layers(padded)[0])
    exact_h1, exact_g0, exact = value_and_gradients(plain)(last, h0, seed)
    exact = jax.tree.map(lambda leaf: leaf.at[0].set(0), exact)  # what the idle first step would like to be
    # In float32 the plain path rounds sums of up to 288 products: 2^-24 of each, some hundred times.
    for name, error in distances(ours, (exact_h1, exact_g0, exact), h0, seed).items():
        assert error < 2e-5, name


@pytest.mark.parametrize("side", [4, 12, 28])
def test_images_survive_as_rows_and_every_position_within_has_one_class(side):
    images = normal(2, side, side, 3)
    rows = packing.rows_of(images)
    assert rows.shape == (2, POSITIONS, STATE)
    np.testing.assert_array_equal(packing.images_of(rows, side), images)
    assert (np.asarray(rows) != 0).any((0, 2)).sum() == (side // 2) ** 2  # and nothing else is there
    of_class = packing.marks(side)
    np.testing.assert_array_equal(of_class.sum(1), (np.asarray(rows) != 0).any((0, 2)))
    inner = max(side // 2 - 2, 0)
    np.testing.assert_array_equal(of_class.sum(0)[4:13], np.outer([1, inner, 1], [1, inner, 1]).ravel())


# ---- the door ----


def test_compiled_for_another_platform_it_is_the_plain_function_with_its_gradient():
    layers, h0 = drawn(3, 32, 2), normal(2, SIDE, SIDE, 3)
    seed = jnp.cos(h0)
    ours = value_and_gradients(lambda layers, h0: fused.euler(layers, h0, plain))(layers, h0, seed)
    exact = value_and_gradients(plain)(layers, h0, seed)
    if jax.default_backend() == "cpu":
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, exact)
        forward_only = jax.jit(lambda layers, h0: fused.euler(layers, h0, plain))(layers, h0)
        np.testing.assert_allclose(forward_only, exact[0], rtol=1e-5, atol=1e-6)


def changed(layers, i, **new):
    names = ("kernel", "time", "bias")
    return tuple(
        tuple(new.get(name, leaf) for name, leaf in zip(names, each, strict=True)) if i == k else each
        for k, each in enumerate(layers)
    )


def test_it_fits_what_it_was_written_for_and_nothing_else(monkeypatch):
    layers = jax.eval_shape(lambda: drawn(3, 32, 2))
    h0 = jax.ShapeDtypeStruct((5, 28, 28, 3), jnp.float32)
    if jax.default_backend() == "cpu":
        assert not fused.fits(layers, h0, **ON)
    monkeypatch.setattr(fused, "TRIED", (jax.__version_info__[:2],))
    monkeypatch.setattr(fused, "_capability", lambda: "9.0")
    for side in (4, 12, 28):
        assert fused.fits(layers, h0.update(shape=(5, side, side, 3)), **ON)
    for shape in ((5, 30, 30, 3), (5, 13, 13, 3), (5, 2, 2, 3), (5, 12, 28, 3), (5, 28, 28, 4), (28, 28, 3)):
        assert not fused.fits(layers, h0.update(shape=shape), **ON), shape
    wide = jax.ShapeDtypeStruct((2, 3, 3, 32, 64), jnp.float32)
    assert not fused.fits(changed(layers, 1, kernel=wide), h0, **ON)
    assert not fused.fits(changed(layers, 0, time=None), h0, **ON)
    assert not fused.fits(layers[:3], h0, **ON)
    assert not fused.fits(layers, h0.update(dtype=jnp.bfloat16), **ON)
    for other in ({"moves": ("same", "same", "same", "same")}, {"activation": jax.nn.relu}, {"compute": "float32"}):
        assert not fused.fits(layers, h0, **(ON | other)), other
    many = jax.eval_shape(lambda: drawn(3, 32, fused.MOST_STEPS + 1))
    assert not fused.fits(many, h0, **ON)
    with jax.enable_x64(True):
        assert not fused.fits(layers, h0, **ON)
    assert fused.fits(layers, h0, **ON)
    monkeypatch.setattr(fused, "_capability", lambda: "10.0")
    assert not fused.fits(layers, h0, **ON)
    monkeypatch.setattr(fused, "_capability", lambda: "9.0")
    monkeypatch.setattr(fused, "TRIED", ((0, 1),))
    assert not fused.fits(layers, h0, **ON)


def test_importing_it_leaves_mosaic_alone():
    code = "import sys; import sdebnn.convolutions.fused; assert 'jax.experimental.mosaic.gpu' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- the kernel ----


def test_a_kernel_compiled_ahead_is_the_programs_own_to_the_byte(monkeypatch):
    """Or Mosaic would compile both (under jax 0.11, which numbers kernels). What does more than call one is refused."""
    from jax.experimental.pallas import mosaic_gpu  # noqa: F401, so that its lowering is known

    from sdebnn.convolutions.fused import blocks

    def double(x, out):
        image = jax.lax.axis_index("image")
        blocks.store(out.at[image], 2 * x[image])

    def lowered(function, *shapes):
        return jax.jit(function, keep_unused=True).trace(*shapes).lower(lowering_platforms=("cuda",))

    begun, x = queue.Queue(), jax.ShapeDtypeStruct((3, 128), jnp.float32)
    monkeypatch.setattr(blocks, "begin", lambda kernel, shapes: begun.put((kernel, shapes)))
    how = {"name": "double", "interpret": False, "ahead": True}
    lowered(blocks.launched(double, 1, 3, [x], [], **how), x)
    assert begun.empty()  # there is no GPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    run = blocks.launched(double, 1, 3, [x], [], **how)
    program = lowered(lambda x: run(x + 1)[0] + 1, x).as_text()
    kernel, shapes = begun.get(timeout=60)
    target, given = blocks._as_bytes(lowered(kernel, *shapes))
    assert target in program
    (called,) = re.findall(r'module = "((?:[^"\\]|\\.)*)"', program)
    (alone,) = re.findall(r'module = "((?:[^"\\]|\\.)*)"', lowered(kernel, *shapes).as_text())
    assert called == alone
    assert len(given["module"]) > 1000
    for more in (lambda x: run(x + 1), lambda x: run(x)[0] + 1, lambda x: [*run(x), x], lambda x, y: run(y)):
        assert blocks._as_bytes(lowered(more, *[x] * more.__code__.co_argcount)) is None


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason=f"jax {jax.__version__} has not the kernel's interpreter")
def test_interpreted_the_kernels_are_as_near_to_float32_as_xla_in_bfloat16():
    # A process of its own: the interpreter's four threads wait for each other, so XLA's pool must hold them all.
    environment = {**os.environ, "NPROC": "16", "JAX_PLATFORMS": "cpu"}
    said = subprocess.run([sys.executable, __file__], env=environment, stdout=subprocess.PIPE, check=True, timeout=300)
    close_as_half_precision_goes(*json.loads(said.stdout.splitlines()[-1]))


@pytest.mark.skipif(fused._capability() != "9.0" or not fused._tried(), reason="needs a Hopper GPU and a tried jax")
@pytest.mark.parametrize("side", [12, 28])
def test_on_a_gpu_the_kernels_are_as_near_to_float32_as_xla_in_bfloat16(side):
    close_as_half_precision_goes(*on_the_gpu(drawn(3, 32, 6), normal(3, side, side, 3)))


if __name__ == "__main__":
    print(json.dumps(interpreted(patches, drawn(3, 32, 6), normal(1, SIDE, SIDE, 3))))  # two launches of the gradient
