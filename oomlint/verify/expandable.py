"""Expandable segments: ranges of addresses that are backed by memory page by page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oomlint.verify.blocks import Block, Pool, Range
from oomlint.verify.sizes import SMALL_SEGMENT, up


@dataclass(slots=True, eq=False)
class Memory:
    """The device's own bytes."""

    capacity: int
    used: int = 0

    @property
    def free(self) -> int:
        return max(0, self.capacity - self.used)

    def take(self, size: int) -> bool:
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True


@dataclass(frozen=True, slots=True)
class Ranges:
    """Finds, backs and gives back the blocks of expandable segments."""

    memory: Memory
    next_segment: Callable[[int], int]  # told the bytes of its range
    mapped: Callable[[Block, int], None]  # told which bytes were gained, or lost if negative

    def obtain(self, pool: Pool, stream: int, size: int, page: int) -> Block | None:
        """A free block of at least `size` bytes that is in no pool; None where memory is full."""
        block = self.candidate(pool, stream, size, page)
        if not block.mapped and not self.map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.following
            if following is None or not self.map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def candidate(self, pool: Pool, stream: int, size: int, page: int) -> Block:
        """Where free and unmapped blocks in a row first hold `size` bytes, or a new range."""
        for place in range(pool.first_unmapped(stream), len(pool.unmapped)):
            block = pool.unmapped[place][1]
            if block.stream != stream:
                break
            if block.previous is not None and block.previous.idle:
                block = block.previous
            if room(block, size):
                return block
        page = SMALL_SEGMENT if pool.small else page
        capacity = self.memory.capacity
        whole = Range(page, up(capacity + capacity // 8, page))
        block = Block(
            pool, stream, whole.size, self.next_segment(whole.size), 0, whole, mapped=False
        )
        pool.insert_unmapped(block)
        return block

    def map(self, block: Block, size: int) -> bool:
        """Backs the first `size` bytes of an unmapped block, in whole pages."""
        assert block.range is not None
        backed = up(size, block.range.page)
        if not self.memory.take(backed):
            return False
        pool = block.pool
        pool.remove_unmapped(block)
        block.mapped = True
        if backed < block.size:
            rest = block.piece(block.size - backed, block.offset + backed, mapped=False)
            rest.splice(block, block.following)
            pool.insert_unmapped(rest)
            block.size = backed
        self.mapped(block, backed)
        pool.merge(block, block.previous)
        pool.merge(block, block.following)
        pool.insert(block)
        return True

    def unmap(self, block: Block) -> None:
        """Gives back the whole pages inside of a free block, and a range without any."""
        assert block.range is not None
        pool, page, end = block.pool, block.range.page, block.offset + block.size
        begin = up(block.offset, page)
        backed = end // page * page - begin
        if backed <= 0:
            return
        pool.remove(block)
        if begin > block.offset:
            before = block.piece(begin - block.offset, block.offset)
            before.splice(block.previous, block)
            pool.insert(before)
        if end > begin + backed:
            after = block.piece(end - begin - backed, begin + backed)
            after.splice(block, block.following)
            pool.insert(after)
        block.offset, block.size, block.mapped = begin, backed, False
        self.memory.used -= backed
        self.mapped(block, -backed)
        pool.merge(block, block.previous)
        pool.merge(block, block.following)
        if block.split:
            pool.insert_unmapped(block)


def room(block: Block | None, size: int) -> bool:
    found = 0
    while found < size and block is not None and block.idle:
        found += block.size
        block = block.following
    return found >= size


def reach(block: Block) -> int:
    """The bytes that a block has or can be extended to."""
    after = block.following
    return block.size + (after.size if after is not None and not after.mapped else 0)
