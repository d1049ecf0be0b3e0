"""The gradients of a step's matrices, for one image:   dL/dW_l = sum over positions of a_{l-1}' d_l.

The four warpgroups share each gradient. The blocks of a layer's table are ordered such that all groups run the same
code, starting at different rows and columns: four different parts would make the kernel four times as long.
"""

from typing import Any, NamedTuple

from jax.experimental import pallas as pl

from sdebnn_hopper.patches.matrix import Ref, Slice, opaque, put_correlations
from sdebnn_hopper.patches.packing import CHANNELS, FIRST_MARK, LINE, POSITIONS, STATE, WIDTH
from sdebnn_hopper.patches.warpgroup import GUARD, HEIGHT, Warpgroup

# Column of the marks in a row of the state's buffer. After the patch come the classes, so the 16 numbers from here on
# are those of ``marks`` except for the first four, which are multiplied by unused rows of a map.
MARKS = 4 * CHANNELS - FIRST_MARK


class Buffers(NamedTuple):
    """The buffers of an image in shared memory: all rows, or one warpgroup's part. ``a3`` also holds d_3 and d_1."""

    a1: Ref
    a3: Ref
    a2: Ref
    d2: Ref
    h: Ref
    d4: Ref


def _opaque(group: Warpgroup, buffers: Buffers) -> tuple[Any, Buffers]:
    """A group's number and an image's buffers, with addresses that the compiler does not keep from step to step."""
    number = opaque(group.number, interpret=group.plan.interpret)
    zero = opaque(group.number - group.number, interpret=group.plan.interpret)
    return number, Buffers(*[buffer.at[pl.ds(zero, HEIGHT)] for buffer in buffers])


def put_fourth(group: Warpgroup, whole: Buffers, out: Ref) -> None:
    """Write dL/dW_4. Each group computes one line of four sources."""
    number, at = _opaque(group, whole)
    line, odd = (number + 1) // 2 - 1, (number + 1) % 2
    source = whole.a3.at[pl.ds(GUARD - 1 + LINE * line, POSITIONS + 2), pl.ds(2 * WIDTH * odd, 2 * WIDTH)]
    tiles = [
        (Slice(at.d4, GUARD, 0, STATE), Slice(source, (j + 1) // 2, WIDTH * ((j + 1) % 2), WIDTH), STATE * j)
        for j in range(4)
    ]
    share = out.at[pl.ds(4 * STATE * number, 4 * STATE)]
    put_correlations(share, tiles, warps=1, interpret=group.plan.interpret)


def put_third(group: Warpgroup, whole: Buffers, out: Ref) -> None:
    """Write dL/dW_3. Three groups compute three taps each, and the last group computes the maps."""
    number, at = _opaque(group, whole)

    @pl.when(group.number < 3)
    def _() -> None:
        d3 = _neighbours(whole.a3, number)
        tiles = [
            (Slice(at.a2, GUARD, 0, WIDTH), Slice(d3, GUARD + j // 2, WIDTH * (j % 2), WIDTH), WIDTH * j)
            for j in range(3)
        ]
        share = out.at[pl.ds(3 * WIDTH * number, 3 * WIDTH)]
        put_correlations(share, tiles, warps=2, interpret=group.plan.interpret)

    @pl.when(group.number == 3)
    def _() -> None:
        marks_at = Slice(at.h, GUARD, MARKS, 16)
        tiles = [(marks_at, Slice(at.a3, GUARD, WIDTH * parity, WIDTH), 16 * parity) for parity in range(4)]
        share = out.at[pl.ds(9 * WIDTH, 4 * 16)]
        put_correlations(share, tiles, warps=1, interpret=group.plan.interpret)


def put_second(group: Warpgroup, whole: Buffers, out: Ref) -> None:
    """Write dL/dW_2, shared among the groups like dL/dW_3."""
    number, at = _opaque(group, whole)
    d2 = Slice(at.d2, GUARD, 0, WIDTH)

    @pl.when(group.number < 3)
    def _() -> None:
        a1 = _neighbours(whole.a1, number)
        tiles = [(Slice(a1, GUARD + j // 2, WIDTH * (j % 2), WIDTH), d2, WIDTH * j) for j in range(3)]
        share = out.at[pl.ds(3 * WIDTH * number, 3 * WIDTH)]
        put_correlations(share, tiles, warps=2, interpret=group.plan.interpret)

    @pl.when(group.number == 3)
    def _() -> None:
        share = out.at[pl.ds(9 * WIDTH, 16)]
        put_correlations(share, [(Slice(at.h, GUARD, MARKS, 16), d2, 0)], warps=1, interpret=group.plan.interpret)


def _neighbours(buffer: Ref, i: Any) -> Ref:
    """The pixels that line i of a 3 x 3 kernel of stride 2 reads: one parity, in this line of patches or the next."""
    return buffer.at[pl.ds(LINE * (i // 2), GUARD + POSITIONS + 1), pl.ds(2 * WIDTH * (i % 2), 2 * WIDTH)]


def put_first(group: Warpgroup, whole: Buffers, out: Ref) -> None:
    """Write dL/dW_1. Each group computes one parity."""
    number, at = _opaque(group, whole)
    e, f = number // 2, number % 2
    columns = pl.ds(WIDTH * number, WIDTH)
    d1 = whole.a3.at[pl.ds((1 - e) * LINE + 1 - f, GUARD + POSITIONS), columns]
    tiles = [
        (Slice(at.h, GUARD, 0, STATE), Slice(d1, GUARD - LINE * i - j, 0, WIDTH), STATE * (2 * i + j))
        for i in range(2)
        for j in range(2)
    ]
    tiles.append((Slice(at.h, GUARD, MARKS, 16), Slice(whole.a3.at[:, columns], GUARD, 0, WIDTH), 4 * STATE))
    share = out.at[pl.ds(5 * STATE * number, 5 * STATE)]
    put_correlations(share, tiles, warps=1, interpret=group.plan.interpret)
