"""The fused kernel of pixels: its packing and phases, itself by Pallas' interpreter and on a GPU that has it."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import ON, close_as_half_precision_goes, drawn, interpreted, normal, on_the_gpu, plain, value_and_gradients

from sdebnn.convolutions import fused
from sdebnn.convolutions.fused import pixels
from sdebnn.convolutions.fused.pixels import packing, phases
from sdebnn.convolutions.fused.pixels.shape import SHAPES, WIDTH, Shape

IDS = [f"{shape.side} pixels" for shape in SHAPES]


# ---- packing ----


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_images_survive_as_rows_and_every_pixel_has_one_class(shape: Shape):
    images = normal(2, shape.side, shape.side, shape.channels)
    rows = packing.rows_of(shape, images)
    assert rows.shape == (2, shape.pixels, shape.columns)
    np.testing.assert_array_equal(packing.images_of(shape, rows), images)
    of_class = packing.classes(shape)
    np.testing.assert_array_equal(of_class.sum(1), 1)
    inner = shape.side - 2
    np.testing.assert_array_equal(of_class.sum(0)[:9], np.outer([1, inner, 1], [1, inner, 1]).ravel())


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_every_tap_is_in_the_stream_where_its_place_says(shape: Shape):
    layers = drawn(shape.channels, WIDTH, 1)
    matrices = packing.packed(layers)
    whole = np.float32(pixels.matrices_of(layers, shape.side))[0]
    blocks = whole.reshape(whole.shape[0], -1, 8, 8, 8)
    rows = np.stack([blocks[:, :, i, np.arange(8) ^ i] for i in range(8)], 2).reshape(whole.shape[0], -1, 64)
    for layer in range(4):
        start, of_taps = phases.first_piece(shape, layer), np.float32(matrices[2 * layer])[0]
        for place, tap in zip(phases.places(shape, layer)[:9], of_taps, strict=True):
            there = rows[start + place.piece, place.row : place.row + tap.shape[0]]
            np.testing.assert_array_equal(there, np.float32(jnp.asarray(tap, jnp.bfloat16)))


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
@pytest.mark.parametrize("adjoint", [False, True])
def test_a_phase_takes_every_tap_once_and_pieces_that_fit_their_place(shape: Shape, adjoint: bool):
    for layer in range(4):
        phase = phases.phase(shape, layer, adjoint=adjoint)
        assert sum(len(term.taps) for piece in phase.pieces for term in piece.terms) == 9
        assert all(piece.size <= shape.slot for piece in phase.pieces)


# ---- the door ----


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_it_fits_what_it_was_written_for(monkeypatch, shape: Shape):
    monkeypatch.setattr(fused, "TRIED", (jax.__version_info__[:2],))
    monkeypatch.setattr(fused, "_capability", lambda: "9.0")
    layers = jax.eval_shape(lambda: drawn(shape.channels, WIDTH, 2))
    h0 = jax.ShapeDtypeStruct((5, shape.side, shape.side, shape.channels), jnp.float32)
    assert fused.fits(layers, h0, **ON)
    assert not fused.fits(layers, h0.update(shape=(5, 2 * shape.side, 2 * shape.side, shape.channels)), **ON)
    assert not fused.fits(jax.eval_shape(lambda: drawn(shape.channels + 1, WIDTH, 2)), h0, **ON)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="on a GPU it is the kernel")
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason=f"jax {jax.__version__} has no kernel to choose between")
def test_compiled_for_another_platform_it_is_the_plain_function_with_its_gradient(monkeypatch):
    monkeypatch.setattr(fused, "TRIED", (jax.__version_info__[:2],))  # both are traced, and the platform chooses
    layers, h0 = drawn(80, WIDTH, 2), normal(1, 8, 8, 80)
    seed = jnp.cos(h0)
    ours = value_and_gradients(lambda layers, h0: fused.euler(layers, h0, plain))(layers, h0, seed)
    exact = value_and_gradients(plain)(layers, h0, seed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, exact)


# ---- the kernel ----


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason=f"jax {jax.__version__} has not the kernel's interpreter")
@pytest.mark.parametrize(("shape", "steps"), [(SHAPES[0], 2), (SHAPES[1], 2), (SHAPES[2], 6)], ids=IDS)
def test_interpreted_the_kernels_are_as_near_to_float32_as_xla_in_bfloat16(shape: Shape, steps: int):
    # A process of its own: the interpreter's four threads wait for each other, so XLA's pool must hold them all.
    environment = {**os.environ, "NPROC": "16", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, *map(str, (*shape, steps))]  # six steps: two launches of the gradient
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=600)
    close_as_half_precision_goes(*json.loads(said.stdout.splitlines()[-1]))


@pytest.mark.skipif(fused._capability() != "9.0" or not fused._tried(), reason="needs a Hopper GPU and a tried jax")
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_on_a_gpu_the_kernels_are_as_near_to_float32_as_xla_in_bfloat16(shape: Shape):
    images = normal(3, shape.side, shape.side, shape.channels)
    close_as_half_precision_goes(*on_the_gpu(drawn(shape.channels, WIDTH, 6), images))


if __name__ == "__main__":
    side, channels, steps = map(int, sys.argv[1:])
    print(json.dumps(interpreted(pixels, drawn(channels, WIDTH, steps), normal(1, side, side, channels))))
