"""The shapes of the paper's blocks: an image as rows of pixels, and how the warpgroups share them.

An image of side 2n is stored as four images of n by n pixels, one for each parity (e, f) of line and column; the pixel
(2i + e, 2j + f) is row (2e + f) n^2 + n i + j. So the neighbours of 16 consecutive rows at any tap of a kernel, of
stride 1 or 2, are 16 consecutive rows, and no two of eight are in the same banks of shared memory.

Between layers a pixel has 64 channels, a row of 128 bytes. The state has C channels, in chunks of 8: first one chunk
for all pixels, then the next.
"""

from typing import NamedTuple

WIDTH = 64  # channels between layers
ROW_BYTES = 2 * WIDTH  # bytes
TILE = 64  # rows of the output of a wgmma
GROUPS = 4  # warpgroups
TAPS = tuple((i, j) for i in range(3) for j in range(3))
CLASSES = 16  # nine classes of pixels by their position at the border, padded with zeros
PARITIES = tuple((e, f) for e in range(2) for f in range(2))


class BlockShape(NamedTuple):
    """The shape of a block: the side of its images, and the number of channels of its state."""

    side: int
    channels: int

    @property
    def small(self) -> int:
        """The side of the small images between the second layer and the third."""
        return self.side // 2

    @property
    def pixels(self) -> int:
        return self.side**2

    @property
    def small_pixels(self) -> int:
        """The pixels of a small image, or of one parity."""
        return self.small**2

    @property
    def chunks(self) -> int:
        return -(-self.channels // 8)

    @property
    def planes(self) -> int:
        """Chunks in shared memory. A product takes 16 channels, or two taps of the same chunk if there is only one."""
        return 1 if self.chunks == 1 else 2 * -(-self.chunks // 2)

    @property
    def tiles(self) -> int:
        """Tiles of pixels that each warpgroup computes; 1 if all warpgroups compute the same tile."""
        return max(self.pixels // TILE // GROUPS, 1)

    @property
    def shared(self) -> bool:
        """Whether the warpgroups share the pixels, rather than the channels."""
        return self.pixels >= GROUPS * TILE

    @property
    def small_shared(self) -> bool:
        """Whether the warpgroups share the pixels of small images."""
        return self.small_pixels >= GROUPS * TILE

    @property
    def made(self) -> int:
        """Channels of the state that a warpgroup computes."""
        return 8 * self.chunks if self.shared else 8 * -(-self.chunks // GROUPS)

    @property
    def columns(self) -> int:
        """Channels of the state in global memory."""
        return self.made if self.shared else GROUPS * self.made

    @property
    def height(self) -> int:
        """Rows of a tap in the matrices of the first and the last layer: one for each channel of the state, padded."""
        return max(self.columns, 8 * self.planes)

    @property
    def taps_of_slot(self) -> int:
        return max(1, TILE // self.height)

    @property
    def slot(self) -> int:
        """Bytes of the largest piece of the matrices that is fetched at once."""
        return ROW_BYTES * max(TILE, self.height)

    @property
    def ring(self) -> int:
        """How many such pieces are on the chip at the same time, a power of two."""
        return 4 if self.side > 16 else 8

    @property
    def both_fit(self) -> bool:
        """Whether two activations of all pixels fit on the chip."""
        return self.side <= 16

    @property
    def by_lines(self) -> bool:
        """Whether a warp has 16 pixels of a line, of one parity: then it computes four lines of the state together.

        Warp w of group 2 k + f has the columns of parity f in lines 16 k + 4 w + 0, 1, 2, 3, one in each tile.
        """
        return self.small == 16 and self.tiles == 4

    @property
    def exchange(self) -> int:
        """Bytes that groups exchange if they share the taps: each group's sums of the columns of the other groups."""
        if self.small_shared:
            return 0
        return GROUPS * (GROUPS - 1) * TILE * 4 * max(WIDTH // GROUPS, 0 if self.shared else self.made)

    @property
    def halves(self) -> int:
        """Parts of the pixels over which the gradients of the outer layers are summed separately, one a group."""
        return max(1, GROUPS // self.tiles_of(2))

    def tiles_of(self, more: int) -> int:
        """The number of tiles of 64 rows that hold all taps of all chunks, and ``more`` chunks."""
        return -(-(9 * self.chunks + more) // 8)


SHAPES = (BlockShape(32, 5), BlockShape(16, 20), BlockShape(8, 80))
