"""The gradients of a step's matrices, of one image:   dL/dW_l = sum over positions of a_{l-1}' d_l.

The four warpgroups share each. The blocks of a layer's table are sorted so that all do the same, from another row and
column on: a kernel of four different parts would be four times as long.
"""

from typing import Any, NamedTuple

from jax.experimental import pallas as pl

from sdebnn.convolutions.fused.patches.matrix import Cut, Ref, anew, put_correlations
from sdebnn.convolutions.fused.patches.packing import CHANNELS, LINE, MARK, POSITIONS, STATE, WIDTH
from sdebnn.convolutions.fused.patches.warpgroup import GUARD, HEIGHT, Warpgroup

# The marks in a row of the state's buffer: after its patch come the classes, so 16 numbers from here on are those of
# ``marks``, but for the first four, which meet rows of a map that stand for nothing.
MARKS = 4 * CHANNELS - MARK


class Buffers(NamedTuple):
    """What of an image is on the chip: all, or one warpgroup's part. ``a3`` is also where d_3 and d_1 come to lie."""

    a1: Ref
    a3: Ref
    a2: Ref
    d2: Ref
    h: Ref
    d4: Ref


def _anew(group: Warpgroup, buffers: Buffers) -> tuple[Any, Buffers]:
    """A group's number and an image's buffers, of addresses that are not kept from step to step."""
    number = anew(group.number, interpret=group.plan.interpret)
    zero = anew(group.number - group.number, interpret=group.plan.interpret)
    return number, Buffers(*[buffer.at[pl.ds(zero, HEIGHT)] for buffer in buffers])


def put_fourth(group: Warpgroup, whole: Buffers, out: Ref) -> None:
    """dL/dW_4, a line of four sources by each group."""
    number, at = _anew(group, whole)
    line, odd = (number + 1) // 2 - 1, (number + 1) % 2
    source = whole.a3.at[pl.ds(GUARD - 1 + LINE * line, POSITIONS + 2), pl.ds(2 * WIDTH * odd, 2 * WIDTH)]
    tiles = [
        (Cut(at.d4, GUARD, 0, STATE), Cut(source, (j + 1) // 2, WIDTH * ((j + 1) % 2), WIDTH), STATE * j)
        for j in range(4)
    ]
    share = out.at[pl.ds(4 * STATE * number, 4 * STATE)]
    put_correlations(share, tiles, warps=1, interpret=group.plan.interpret)


def put_third(group: Warpgroup, whole: Buffers, out: Ref) -> None:
    """dL/dW_3, three taps by each of three groups, and the maps by the last."""
    number, at = _anew(group, whole)

    @pl.when(group.number < 3)
    def _() -> None:
        d3 = _neighbours(whole.a3, number)
        tiles = [
            (Cut(at.a2, GUARD, 0, WIDTH), Cut(d3, GUARD + j // 2, WIDTH * (j % 2), WIDTH), WIDTH * j) for j in range(3)
        ]
        share = out.at[pl.ds(3 * WIDTH * number, 3 * WIDTH)]
        put_correlations(share, tiles, warps=2, interpret=group.plan.interpret)

    @pl.when(group.number == 3)
    def _() -> None:
        marks_at = Cut(at.h, GUARD, MARKS, 16)
        tiles = [(marks_at, Cut(at.a3, GUARD, WIDTH * parity, WIDTH), 16 * parity) for parity in range(4)]
        share = out.at[pl.ds(9 * WIDTH, 4 * 16)]
        put_correlations(share, tiles, warps=1, interpret=group.plan.interpret)


def put_second(group: Warpgroup, whole: Buffers, out: Ref) -> None:
    """dL/dW_2, as dL/dW_3."""
    number, at = _anew(group, whole)
    d2 = Cut(at.d2, GUARD, 0, WIDTH)

    @pl.when(group.number < 3)
    def _() -> None:
        a1 = _neighbours(whole.a1, number)
        tiles = [(Cut(a1, GUARD + j // 2, WIDTH * (j % 2), WIDTH), d2, WIDTH * j) for j in range(3)]
        share = out.at[pl.ds(3 * WIDTH * number, 3 * WIDTH)]
        put_correlations(share, tiles, warps=2, interpret=group.plan.interpret)

    @pl.when(group.number == 3)
    def _() -> None:
        share = out.at[pl.ds(9 * WIDTH, 16)]
        put_correlations(share, [(Cut(at.h, GUARD, MARKS, 16), d2, 0)], warps=1, interpret=group.plan.interpret)


def _neighbours(buffer: Ref, i: Any) -> Ref:
    """The pixels that line i of a 3 x 3 kernel of stride 2 meets: of a parity, in a line of patches or the next."""
    return buffer.at[pl.ds(LINE * (i // 2), GUARD + POSITIONS + 1), pl.ds(2 * WIDTH * (i % 2), 2 * WIDTH)]


def put_first(group: Warpgroup, whole: Buffers, out: Ref) -> None:
    """dL/dW_1, a parity by each group."""
    number, at = _anew(group, whole)
    e, f = number // 2, number % 2
    columns = pl.ds(WIDTH * number, WIDTH)
    d1 = whole.a3.at[pl.ds((1 - e) * LINE + 1 - f, GUARD + POSITIONS), columns]
    tiles = [
        (Cut(at.h, GUARD, 0, STATE), Cut(d1, GUARD - LINE * i - j, 0, WIDTH), STATE * (2 * i + j))
        for i in range(2)
        for j in range(2)
    ]
    tiles.append((Cut(at.h, GUARD, MARKS, 16), Cut(whole.a3.at[:, columns], GUARD, 0, WIDTH), 4 * STATE))
    share = out.at[pl.ds(5 * STATE * number, 5 * STATE)]
    put_correlations(share, tiles, warps=1, interpret=group.plan.interpret)
