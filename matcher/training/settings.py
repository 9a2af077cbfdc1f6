"""What a training run is made of; the `[training]` table of a model's recipe.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from matcher.synthesis import homographies, light, scenes


@dataclass(frozen=True)
class Mix:
    """Shares of the kinds of pairs; what is left to one are homographies."""

    scenes: float = 0.3  # planes and relief in space
    unrelated: float = 0.05  # two photographs of different things
    real: float = 0.0  # pairs of a collection, as `matcher mine` makes them

    def __post_init__(self) -> None:
        shares = (self.scenes, self.unrelated, self.real)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(
                f"shares of pairs must be at least 0 and 1 together at most, not {shares}"
            )


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        minutes: Budget of wall-clock time; the schedule ends with it.
        steps: Most steps; None for as many as the minutes hold.
        batch: Pairs a step and process.
        sizes: Heights and widths of the views; each step draws one.
        tokens: Keypoints or cells an image.
        near: Pixels within which two mutually nearest tokens are the same point.
        far: Pixels within which a token without partner must have no token for it to count as
            alone.
        rate: Highest learning rate, after the warm-up.
        backbone_rate: Share of it for the CNN, whose batch statistics stay fixed; 0 freezes it.
        warmup: Share of the run.
        average: Decay of the moving average of the weights, which is what is kept.
        largest_gradient: Longer gradients are shortened to it.
        precision: "float32", or "bfloat16" for the products.
        mix: Kinds of pairs.
        homographies: How far views of planes differ.
        scenes: How scenes differ.
        light: How light and camera differ.
        seed: Of everything that is drawn.
        save_minutes: Between checkpoints.
        check_minutes: Between looks at the validation pairs.
    """

    minutes: float = 60.0
    steps: int | None = None
    batch: int = 4
    sizes: tuple[tuple[int, int], ...] = ((256, 320), (320, 256), (384, 512))
    tokens: int = 640
    near: float = 3.0
    far: float = 5.0
    rate: float = 2e-4
    backbone_rate: float = 0.0
    warmup: float = 0.03
    average: float = 0.998
    largest_gradient: float = 1.0
    precision: str = "float32"
    mix: Mix = field(default_factory=Mix)
    homographies: homographies.Config = field(default_factory=homographies.Config)
    scenes: scenes.Config = field(default_factory=scenes.Config)
    light: light.Config = field(default_factory=light.Config)
    seed: int = 0
    save_minutes: float = 3.0
    check_minutes: float = 10.0

    def __post_init__(self) -> None:
        for name in ("minutes", "batch", "tokens", "rate", "near"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if self.far < self.near:
            raise ValueError(f"far ({self.far}) must be at least near ({self.near})")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"no precision {self.precision!r}; there are float32, bfloat16")


_PARTS = {
    "mix": Mix,
    "homographies": homographies.Config,
    "scenes": scenes.Config,
    "light": light.Config,
}


def from_table(table: Mapping[str, Any]) -> Settings:
    """Read a `[training]` table, whose sub-tables are those of `Settings`.

    Raises:
        TypeError: It has an unknown key.
        ValueError: A value makes no sense.
    """
    values: dict[str, Any] = dict(table)
    for name, part in _PARTS.items():
        if name in values:
            values[name] = part(**_frozen(values[name]))
    return Settings(**_frozen(values))


def to_table(settings: Settings) -> dict[str, Any]:
    """Give the table of what differs from the defaults."""
    return _changes(settings, Settings())


def _changes(chosen: Any, default: Any) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for item in fields(chosen):
        value, usual = getattr(chosen, item.name), getattr(default, item.name)
        if value == usual:
            continue
        table[item.name] = _changes(value, usual) if is_dataclass(value) else value
    return table


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the lists of TOML into tuples."""
    return {name: _tuples(value) for name, value in table.items()}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
