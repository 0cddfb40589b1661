"""Blocks of the caching allocator's segments, and the pools that keep the free ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from oomlint.verify.statistics import Counters

Key = tuple[int, int, int, int]


@dataclass(slots=True, eq=False)
class Range:
    """Addresses of an expandable segment, of which whole pages are backed by memory."""

    page: int
    size: int


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment; neighbours are linked, free or not."""

    pool: Pool
    stream: int
    size: int
    segment: int  # counts the segments in the order in which they were obtained
    offset: int
    range: Range | None = None  # of an expandable segment
    mapped: bool = True
    requested: int = 0
    allocated: bool = False
    uses: set[int] | None = None  # other streams that work with it
    since: int = 0  # the pool's searches when it was put there
    previous: Block | None = None
    following: Block | None = None

    @property
    def key(self) -> Key:
        # Best fit; among equal sizes the oldest segment, then the lowest address (torch >= 2.13).
        return self.stream, self.size, self.segment, self.offset

    @property
    def split(self) -> bool:
        return self.previous is not None or self.following is not None

    @property
    def idle(self) -> bool:
        return not self.allocated and not self.uses

    def piece(self, size: int, offset: int, *, mapped: bool = True) -> Block:
        """Another block of the same segment, linked to nothing."""
        return Block(self.pool, self.stream, size, self.segment, offset, self.range, mapped)

    def splice(self, previous: Block | None, following: Block | None) -> None:
        self.previous, self.following = previous, following
        if previous is not None:
            previous.following = self
        if following is not None:
            following.previous = self


@dataclass(slots=True, eq=False)
class Pool:
    """The free blocks of small or of large requests, in the order in which they are looked for."""

    small: bool
    counters: Counters
    free: list[tuple[Key, Block]] = field(default_factory=list)
    unmapped: list[tuple[Key, Block]] = field(default_factory=list)  # by stream and address
    searches: int = 0
    whole: bool = False  # its blocks are never split

    def insert(self, block: Block) -> None:
        block.since = self.searches
        insort(self.free, (block.key, block))

    def remove(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.key,))]

    def first(self, stream: int, size: int) -> int:
        """Where the blocks of a stream begin that hold `size` bytes."""
        return bisect_left(self.free, ((stream, size, 0, 0),))

    def insert_unmapped(self, block: Block) -> None:
        insort(self.unmapped, (address(block), block))

    def remove_unmapped(self, block: Block) -> None:
        del self.unmapped[bisect_left(self.unmapped, (address(block),))]

    def first_unmapped(self, stream: int) -> int:
        return bisect_left(self.unmapped, ((stream, 0, 0, 0),))

    def merge(self, block: Block, other: Block | None) -> int:
        """Joins a neighbour to `block` if it is as free as that; the bytes that it had."""
        if other is None or not other.idle or block.mapped != other.mapped:
            return 0
        if other.mapped:
            self.remove(other)
        else:
            self.remove_unmapped(other)
        if block.previous is other:
            block.offset = other.offset
            block.splice(other.previous, block.following)
        else:
            block.splice(block.previous, other.following)
        block.size += other.size
        return other.size


@dataclass(slots=True, eq=False)
class Pools:
    """The pool of small requests and that of large ones, with the identity that torch shows."""

    small: Pool
    large: Pool
    id: tuple[int, int] = (0, 0)
    users: int = 1  # without any, cached memory goes back to the device

    def __iter__(self) -> Iterator[Pool]:
        return iter((self.large, self.small))


def address(block: Block) -> Key:
    return block.stream, block.segment, block.offset, 0
