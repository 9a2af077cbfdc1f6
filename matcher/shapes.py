"""Check tensor and array shapes at public doors, in the letters of the docstrings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Shaped(Protocol):
    """Anything with a shape: a numpy array or a torch tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, first axis first."""
        ...


def check_shape(
    name: str, value: Shaped, wanted: str, known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Check a shape against letters and numbers, and read the letters' sizes.

    Args:
        name: The argument's name, for the message.
        value: The array.
        wanted: One word an axis: a letter stands for a size, a number for itself ("B 1 H W").
        known: Letters whose size is fixed already.

    Returns:
        The size of every letter, the known ones included.

    Raises:
        ValueError: Another number of axes, or a size that differs.
    """
    sizes = dict(known or {})
    words, shape = wanted.split(), tuple(value.shape)
    fits = len(words) == len(shape)
    for word, size in zip(words, shape, strict=False):
        fits &= size == (int(word) if word.isdigit() else sizes.setdefault(word, size))
    if not fits:
        given = ", ".join(f"{letter}={size}" for letter, size in (known or {}).items())
        raise ValueError(
            f"{name} must be ({wanted}){' with ' + given if given else ''}, not {shape}"
        )
    return sizes
