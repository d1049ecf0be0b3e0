"""Rows, lines and columns, and classes of pixels, for integers of a thread or, in the interpreter, for arrays."""

from typing import Any

import jax.numpy as jnp

from sdebnn_hopper.pixels.assembly import Int, anded, chosen, is_value
from sdebnn_hopper.pixels.shape import BlockShape

Number = Any  # an integer of a thread, or an array of integers


def below(number: Number, bound: int) -> Any:
    """Whether 0 <= number < bound."""
    return number.below(bound) if isinstance(number, Int) else (number >= 0) & (number < bound)


def equal(number: Number, other: int) -> Any:
    """Whether two numbers are equal."""
    return number.equals(other) if isinstance(number, Int) else number == other


def choose(condition: Any, yes: Number, no: Number) -> Number:
    """One of two numbers, by a condition."""
    return chosen(condition, yes, no) if is_value(condition) else jnp.where(condition, yes, no)


def both(x: Any, y: Any) -> Any:
    """Whether both hold."""
    return anded(x, y) if is_value(x) else x & y


def _bits(shape: BlockShape) -> int:
    return shape.small.bit_length() - 1


def pixel(shape: BlockShape, row: Number) -> tuple[Number, Number]:
    """The line and the column of a row of an image."""
    bits = _bits(shape)
    plane, p = row >> (2 * bits), row & (shape.small_pixels - 1)
    return ((p >> bits) << 1) + (plane >> 1), ((p & (shape.small - 1)) << 1) + (plane & 1)


def row_of(shape: BlockShape, y: Number, x: Number) -> tuple[Number, Any]:
    """The row of the pixel at a line and a column, and whether it is inside the image."""
    bits = _bits(shape)
    row = ((((y & 1) << 1) + (x & 1)) << (2 * bits)) + ((y >> 1) << bits) + (x >> 1)
    return row, both(below(y, shape.side), below(x, shape.side))


def small_pixel(shape: BlockShape, row: Number) -> tuple[Number, Number]:
    """The line and the column of a row of a small image."""
    return row >> _bits(shape), row & (shape.small - 1)


def small_row(shape: BlockShape, y: Number, x: Number) -> tuple[Number, Any]:
    """The row of the pixel at a line and a column of a small image, and whether it is inside."""
    return (y << _bits(shape)) + x, both(below(y, shape.small), below(x, shape.small))


def line_pixel(group: Number, warp: Number, column: Number) -> tuple[Number, Number]:
    """The line and the column of one of a warp's 16 pixels in the first tile: see ``BlockShape.by_lines``."""
    return ((group >> 1) << 4) + (warp << 2), (column << 1) + (group & 1)


def class_of(side: int, y: Number, x: Number) -> Number:
    """The class of a pixel: first, inner or last line, and likewise for the column."""

    def kind(at: Number) -> Number:
        last = choose(equal(at, side - 1), at * 0 + 2, at * 0 + 1)
        return choose(equal(at, 0), at * 0, last)

    return kind(y) * 3 + kind(x)


def up_class_of(y: Number, x: Number) -> Number:
    """The class of a pixel after "up": first, odd or other even line, and likewise for the column."""

    def kind(at: Number) -> Number:
        return choose(equal(at, 0), at * 0, (at & 1) * -1 + 2)

    return kind(y) * 3 + kind(x)


def swizzled(base: Int, row: Int, chunk: Int) -> Int:
    """The address of 16 bytes in a row of 128 bytes, in the swizzled layout of wgmma."""
    return base + (row << 7) + (((row & 7) ^ chunk) << 4)
