"""Agreement: which digest the lowest tier was seen to have for a key, as it decides (I2).

A copy above it may be another: published while that tier was away, or copied from a tier that had it for a moment. So
what is handed out from above is compared with the lowest tier now and then, in the background; this remembers what was.
In memory and bounded: what is forgotten is compared again. So is everything after a while: a lowest tier may lose what
it had, and be given another since; what it lacks and is not to be given (sharing.py) another host's plan may put there.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from coldstart.artifact import Header

REMEMBERED = 16_384
BELIEVED_SECONDS = 600.0  # that the tier isn't asked again


class Agreement:
    """One chain's memory of its lowest tier."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # key, variant -> digest, and until when that is believed
        self._digests: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    def note(self, header: Header) -> None:
        """The lowest tier has that, or will never take another."""
        self._note(header)

    def note_absent(self, header: Header) -> None:
        """The lowest tier has nothing, and isn't given it."""
        self._note(header)

    def holds(self, header: Header) -> bool:
        """Whether it is known to be what the lowest tier has, or that it has nothing."""
        digest, until = self._digests.get((header.key, header.variant), ("", 0.0))
        return digest == header.digest and self._now() < until

    def _note(self, header: Header) -> None:
        place = (header.key, header.variant)
        self._digests[place] = (header.digest, self._now() + BELIEVED_SECONDS)
        self._digests.move_to_end(place)
        if len(self._digests) > REMEMBERED:
            self._digests.popitem(last=False)
