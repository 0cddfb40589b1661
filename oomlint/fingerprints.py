"""Names findings by what they are about, so that they are known again when lines have moved."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

from oomlint.source import Source


def fingerprints(
    name: str, places: Iterable[tuple[str, int]], source: Source | None
) -> tuple[str, ...]:
    """One digest for each (code, 1-based row) of a file; no two are equal.

    A digest rests on `name` (the file's, with slashes, from where the reader looks), on the code,
    on the text of the row but for its white space, and on how many equal ones stand above.
    """
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for code, row in places:
        text = ""
        if source is not None and 1 <= row <= len(source.line_starts):
            text = " ".join(source.line(row).split())
        seen[code, text] += 1
        facts = "\0".join((name, code, text, str(seen[code, text])))
        data = facts.encode("utf-8", "surrogatepass")
        found.append(hashlib.blake2b(data, digest_size=16).hexdigest())
    return tuple(found)
