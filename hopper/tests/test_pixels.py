"""The kernel of pixels: its packing and phases, the kernel in Pallas' interpreter and on a Hopper GPU."""

import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import (
    assert_as_close_as_bfloat16,
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
from sdebnn_hopper import pixels
from sdebnn_hopper.pixels import packing, phases
from sdebnn_hopper.pixels.shape import SHAPES, WIDTH, BlockShape

IDS = [f"{shape.side} pixels" for shape in SHAPES]


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_rows_hold_all_pixels_and_every_pixel_has_one_class(shape: BlockShape):
    images = normal(2, shape.side, shape.side, shape.channels)
    rows = packing.rows_of(shape, images)
    assert rows.shape == (2, shape.pixels, shape.columns)
    np.testing.assert_array_equal(packing.images_of(shape, rows), images)
    of_class = packing.classes(shape)
    np.testing.assert_array_equal(of_class.sum(1), 1)
    inner = shape.side - 2
    np.testing.assert_array_equal(of_class.sum(0)[:9], np.outer([1, inner, 1], [1, inner, 1]).ravel())


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_the_stream_holds_every_tap_at_the_place_that_phases_gives(shape: BlockShape):
    layers = drawn(shape.channels, WIDTH, 1)
    matrices, whole = jax.jit(lambda layers: (packing.packed(layers), pixels.matrices_of(layers, shape.side)))(layers)
    whole = np.float32(whole)[0]
    blocks = whole.reshape(whole.shape[0], -1, 8, 8, 8)
    rows = np.stack([blocks[:, :, i, np.arange(8) ^ i] for i in range(8)], 2).reshape(whole.shape[0], -1, 64)
    for layer in range(4):
        start, of_taps = phases.first_piece(shape, layer), np.float32(matrices[2 * layer])[0]
        for place, tap in zip(phases.places(shape, layer)[:9], of_taps, strict=True):
            there = rows[start + place.piece, place.row : place.row + tap.shape[0]]
            np.testing.assert_array_equal(there, np.float32(tap.astype(jnp.bfloat16)))


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
@pytest.mark.parametrize("adjoint", [False, True])
def test_a_phase_takes_every_tap_once_and_its_pieces_fit_their_slots(shape: BlockShape, adjoint: bool):
    for layer in range(4):
        phase = phases.phase(shape, layer, adjoint=adjoint)
        assert sum(len(term.taps) for piece in phase.pieces for term in piece.terms) == 9
        assert all(piece.size <= shape.slot for piece in phase.pieces)


@needs_jax
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="on a GPU the kernel runs")
def test_compiled_for_a_processor_it_is_the_plain_function_with_its_gradient():
    layers, h0 = drawn(80, WIDTH, 2), normal(1, 8, 8, 80)
    seed = jnp.cos(h0)
    ours = value_and_gradients(lambda layers, h0: sdebnn_hopper.euler(layers, h0, plain))(layers, h0, seed)
    exact = value_and_gradients(plain)(layers, h0, seed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, exact)


@needs_jax
@pytest.mark.parametrize(("shape", "steps"), [(SHAPES[0], 2), (SHAPES[1], 2), (SHAPES[2], 4)], ids=IDS)
def test_interpreted_the_kernels_are_as_near_to_float32_as_xla_in_bfloat16(shape: BlockShape, steps: int):
    """Four steps take two launches of the gradient, since a launch is limited to two steps here."""
    assert_as_close_as_bfloat16(*interpreted_elsewhere(__file__, *shape, steps))


@needs_jax
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_the_kernels_can_be_lowered_without_a_gpu(shape: BlockShape, monkeypatch):
    """Lowering runs the Python code that writes the assembly, which the interpreter skips."""
    from sdebnn_hopper import blocks

    monkeypatch.setattr(blocks, "compile_kernel", lambda kernel, shapes: None)
    layers, h0 = drawn(shape.channels, WIDTH, 2), normal(1, shape.side, shape.side, shape.channels)
    both = value_and_gradients(lambda layers, h0: sdebnn_hopper.euler(layers, h0, plain))
    program = both.trace(layers, h0, h0).lower(lowering_platforms=("cuda",)).as_text()
    assert set(re.findall(r"sdebnn_(?:forward|backward)", program)) == {"sdebnn_forward", "sdebnn_backward"}


@needs_hopper
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_on_a_gpu_the_kernels_are_as_near_to_float32_as_xla_in_bfloat16(shape: BlockShape):
    images = normal(3, shape.side, shape.side, shape.channels)
    assert_as_close_as_bfloat16(*on_the_gpu(drawn(shape.channels, WIDTH, 6), images))


if __name__ == "__main__":
    from sdebnn_hopper.pixels import backward

    backward.MAX_STEPS_A_LAUNCH = 2
    side, channels, steps = map(int, sys.argv[1:])
    print(json.dumps(interpreted(pixels, drawn(channels, WIDTH, steps), normal(1, side, side, channels))))
