"""Agreement: which digest the lowest tier was seen to have for a key, as it decides (I2).

A copy above it may be another: published while that tier was away, or copied from a tier that had it for a moment. So
what is handed out from above is compared with the lowest tier once, in the background; this remembers what was. In
memory and bounded: what is forgotten is compared again.
"""

from __future__ import annotations

from collections import OrderedDict

from coldstart.artifact import Header

REMEMBERED = 16_384


class Agreement:
    """One chain's memory of its lowest tier."""

    def __init__(self) -> None:
        self._digests: OrderedDict[tuple[str, str], str] = OrderedDict()

    def note(self, header: Header) -> None:
        """The lowest tier has that, or will never take another."""
        place = (header.key, header.variant)
        self._digests[place] = header.digest
        self._digests.move_to_end(place)
        if len(self._digests) > REMEMBERED:
            self._digests.popitem(last=False)

    def holds(self, header: Header) -> bool:
        """Whether it is known to be what the lowest tier has."""
        return self._digests.get((header.key, header.variant)) == header.digest
