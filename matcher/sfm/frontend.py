"""Describe every image once and match every pair, with results on disk that are never stale.

A description's key is a hash of the pixels, the mask, the size they are seen at, and the method
with its options and weights, on whatever device; the key of a pair's matches is a hash of both descriptions' keys. So
a run goes on where it was stopped, and whatever has changed is made again, and only that.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from matcher import images, matching
from matcher.evaluation.identity import identity
from matcher.sfm.cameras import Camera
from matcher.sfm.geometry import TwoViewGeometry, VerifyOptions, verify_pair
from matcher.sfm.growing import Grown, grow_group
from matcher.sfm.photos import Photo, load
from matcher.sfm.sharpening import Group, Placed, place
from matcher.sfm.store import Descriptions, MatchStore
from matcher.types import Description, Image, Matcher, Matches

NamePair: TypeAlias = tuple[str, str]

BATCH = 4  # photos described at once
SHARD = 64  # pairs a file: what a killed run loses at most
RECENT = 2 * SHARD  # descriptions kept in memory: those of a shard whose pairs share no image
# What methods are made with here where the caller says nothing: twice the keypoints of a single pair
# halve the errors of the cameras; twice as many again gain little and take five times as long.
OPTIONS: Mapping[str, Mapping[str, Any]] = {"superglue": {"max_keypoints": 2048}}
FORMAT = "1"  # of the files; another number makes old ones be made again


@dataclass(frozen=True)
class VerifyJob:
    """A pair to verify.

    Attributes:
        pair: Names of the two photos.
        cameras: Of the photos as described.
        options: When the pair counts.
    """

    pair: NamePair
    cameras: tuple[Camera, Camera]
    options: VerifyOptions


@dataclass(frozen=True)
class MethodChoice:
    """A method by name, so that any process can make it.

    Attributes:
        name: One of `matcher.list_methods()`.
        options: Fields of its options, and `weights`; they come before those of `OPTIONS`.
        device: See `matcher.nn.devices.choose_device`.
        turns: Whether quarter turns are tried where a pair does not match. Most pairs of a large
            list show different places, so it is not done unasked: each would cost four matchings.
    """

    name: str = "superglue"
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    turns: bool = False

    def build(self) -> Matcher:
        """Make it, without refinement: correlation places whole tracks later, not single matches."""
        options = {**OPTIONS.get(self.name, {}), **self.options}
        return matching.create(
            self.name, device=self.device, refine=False, turns=self.turns, scales=(), **options
        )


class FrontEnd:
    """A method, the photos it works on, and its results on disk."""

    def __init__(
        self,
        photos: Sequence[Photo],
        folder: str | Path,
        choice: MethodChoice | None = None,
        long_side: int | None = 1600,
    ) -> None:
        """Make the method and find what the folder holds already.

        Args:
            photos: From `list_photos`.
            folder: For descriptions and matches; made where missing.
            choice: Which method.
            long_side: Larger photos are shrunk to this before they are described.
        """
        choice = choice or MethodChoice()
        self.photos = {photo.name: photo for photo in photos}
        self.long_side = long_side
        self.method = choice.build()
        self._identity = re.sub(r"device=[^,)]+", "device", identity(self.method))
        self._keys: dict[str, str] = {}
        self._recent: OrderedDict[str, Description] = OrderedDict()
        self.descriptions = Descriptions(Path(folder) / "descriptions")
        self.matches = MatchStore(Path(folder) / "matches")
        self.matches.refresh()

    def key(self, name: str) -> str:
        """Return what a photo's description is kept under."""
        if name not in self._keys:
            content = self.photos[name].content()
            self._keys[name] = _hash(FORMAT, self._identity, content, str(self.long_side))
        return self._keys[name]

    def pair_key(self, pair: NamePair) -> str:
        """Return what a pair's matches are kept under."""
        return _hash(self.key(pair[0]), self.key(pair[1]))

    def undescribed(self, names: Sequence[str] | None = None) -> list[str]:
        """List the photos that are not yet described, all or among those named."""
        asked = list(self.photos) if names is None else names
        return [name for name in asked if self.key(name) not in self.descriptions]

    def describe(self, names: Sequence[str]) -> None:
        """Describe photos and keep what comes out."""
        loaded = [load(self.photos[name], self.long_side) for name in names]
        pictures, masks = [each.image for each in loaded], [each.mask for each in loaded]
        described = self.method.describe(pictures, masks)
        for name, description in zip(names, described, strict=True):
            self.descriptions.save(self.key(name), description)

    def unmatched(self, pairs: Sequence[NamePair]) -> list[NamePair]:
        """List the pairs that are not yet matched."""
        self.matches.refresh()
        return [pair for pair in pairs if self.pair_key(pair) not in self.matches]

    def match(self, pairs: Sequence[NamePair]) -> None:
        """Match pairs and keep what comes out, as one shard."""
        described = [(self.description(name0), self.description(name1)) for name0, name1 in pairs]
        keys = [self.pair_key(pair) for pair in pairs]
        found = self.method.match(described)
        self.matches.save(_hash(*keys), dict(zip(keys, found, strict=True)))

    def found(self, pair: NamePair) -> Matches:
        """Return the matches of a pair, in pixels as described.

        Raises:
            KeyError: The pair was not matched.
        """
        return self.matches.load(self.pair_key(pair))

    def verify(self, jobs: Sequence[VerifyJob]) -> list[TwoViewGeometry]:
        """Verify the matches of pairs, in pixels as described."""
        if not all(self.pair_key(job.pair) in self.matches for job in jobs):
            self.matches.refresh()
        verified = []
        for job in jobs:
            found = self.found(job.pair)
            both = found.points0, found.points1
            verified.append(verify_pair(both, job.cameras, job.options))
        return verified

    def place(self, groups: Sequence[Group]) -> list[Placed]:
        """Correlate points of one image with those of another: one group an image pair."""
        return [place(group, self.image(group.fixed), self.image(group.moving)) for group in groups]

    def grow(self, groups: Sequence[Group]) -> list[Grown]:
        """Grow from the points that two images share: one group an image pair."""
        return [self._grown(group) for group in groups]

    def _grown(self, group: Group) -> Grown:
        one, other = self.description(group.fixed), self.description(group.moving)
        return grow_group(group, (one.image, other.image), (one.mask, other.mask))

    def description(self, name: str) -> Description:
        """Return a photo's description, from memory, from disk, or made now."""
        if name not in self._recent:
            loaded = load(self.photos[name], self.long_side)
            grey = images.grey(loaded.image)
            kept = self.descriptions.load(self.key(name), grey, loaded.mask)
            if kept is None:
                kept = self.method.describe([loaded.image], [loaded.mask])[0]
                self.descriptions.save(self.key(name), kept)
            self._recent[name] = kept
        self._recent.move_to_end(name)
        while len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        return self._recent[name]

    def image(self, name: str) -> Image:
        """Return the grey image that a photo was described from."""
        return self.description(name).image


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
