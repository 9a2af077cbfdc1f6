"""Import optional packages, with an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

_EXTRA_OF = {
    "cv2": "baselines",
    "kornia": "baselines",
    "pycolmap": "sfm",
    "h5py": "sfm",
    "onnx": "export",
    "onnxruntime": "export",
    "ray": "cluster",
}


def require(package: str, wanted_for: str) -> ModuleType:
    """Import a package that the core does without.

    Raises:
        ImportError: It is not installed; the message names who wants it and the extra that brings it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        extra = _EXTRA_OF.get(package)
        command = f"pip install 'tiepoint[{extra}]'" if extra else f"pip install {package}"
        raise ImportError(f"{wanted_for} needs {package}: {command}", name=package) from error
