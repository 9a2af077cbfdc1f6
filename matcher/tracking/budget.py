"""Keep the time of a frame within a budget: fewer pixels and keypoints when it runs short."""

from __future__ import annotations

from dataclasses import dataclass

_STEP = 1.6  # of time, from one level to the next: what the sizes below come to, roughly
_CALM = 30  # frames with room before more is tried
_LONGEST = 3000  # frames to wait after having tried in vain again and again
_TIGHT = 0.8  # share of the budget that a frame should keep to, so that jitter fits too


@dataclass(frozen=True)
class Level:
    """How much of a frame is looked at.

    Attributes:
        long_side: Pixels; larger frames are shrunk to it.
        keypoints: The best ones.
    """

    long_side: int
    keypoints: int


LEVELS = (
    Level(1280, 2048),
    Level(960, 1536),
    Level(640, 1024),
    Level(512, 768),
    Level(400, 512),
    Level(320, 384),
    Level(256, 256),
    Level(200, 160),
)


class Budget:
    """Chooses the level of the next frame from the time that the last one took."""

    def __init__(self, seconds: float | None, level: int = 2) -> None:
        """Begin at a level.

        Args:
            seconds: Of a frame at most; None never changes the level.
            level: Number in `LEVELS`.

        Raises:
            ValueError: The budget is not positive, or there is no such level.
        """
        if seconds is not None and seconds <= 0:
            raise ValueError(f"the budget must be positive, not {seconds} s")
        if not 0 <= level < len(LEVELS):
            raise ValueError(f"level must be from 0 to {len(LEVELS) - 1}, not {level}")
        self.seconds = seconds
        self._number = level
        self._calm = 0
        self._wait = _CALM

    @property
    def level(self) -> Level:
        """What the next frame gets."""
        return LEVELS[self._number]

    def allows(self, seconds: float) -> bool:
        """Tell whether a frame may take so long."""
        return self.seconds is None or seconds <= _TIGHT * self.seconds

    def spent(self, seconds: float) -> None:
        """Take note of the time of a frame: step down at once, up after a while of calm.

        Each time that more was too much, the next try waits twice as long.
        """
        if self.seconds is None:
            return
        room = _TIGHT * self.seconds
        if not self.allows(seconds):
            self._wait = min(2 * self._wait, _LONGEST)
            while seconds > room and self._number < len(LEVELS) - 1:
                self._number += 1
                seconds /= _STEP
            self._calm = 0
        elif seconds * _STEP < room and self._number > 0:
            self._calm += 1
            if self._calm >= self._wait:
                self._number -= 1
                self._calm = 0
        else:
            self._calm = 0
