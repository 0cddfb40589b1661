"""Byte sizes of CUDA's caching allocator: its constants, how it rounds requests, how it writes."""

from __future__ import annotations

KIB, MIB, GIB = 1024, 1024**2, 1024**3

MIN_BLOCK = 512
SMALL_LIMIT = 1 * MIB  # inclusive
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE = 10 * MIB
LARGE_ROUNDING = 2 * MIB
DEVICE_PAGE = 2 * MIB  # what the device itself hands out


def up(size: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-size // unit) * unit


def round_size(request: int, divisions: int = 0) -> int:
    """The bytes that a request of `request` > 0 bytes asks of a pool."""
    if request < MIN_BLOCK:
        return MIN_BLOCK
    if divisions > 1 and request > MIN_BLOCK * divisions:
        return round_up(request, divisions)
    return up(request, MIN_BLOCK)


def round_up(size: int, divisions: int) -> int:
    """A size of the `divisions` equal steps between two powers of two that holds `size` bytes."""
    floor = 1 << (size.bit_length() - 1)
    if size == floor:
        return size
    step = floor >> (divisions.bit_length() - 1)
    return up(size, step) if step else floor << 1


def segment_size(size: int, large_segment: int = LARGE_SEGMENT) -> int:
    """The bytes asked of the device for a rounded size that no cached block can hold."""
    if size <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return large_segment
    return up(size, LARGE_ROUNDING)


def format_size(size: int) -> str:
    """Bytes the way CUDA's own out-of-memory text writes them."""
    if size <= KIB:
        return f"{size} bytes"
    if size <= MIB:
        return f"{size / KIB:.2f} KiB"
    if size <= GIB:
        return f"{size / MIB:.2f} MiB"
    return f"{size / GIB:.2f} GiB"
