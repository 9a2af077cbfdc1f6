"""Import optional packages, with an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

EXTRA_OF = {  # by import name
    "cv2": "baselines",
    "kornia": "baselines",
    "pycolmap": "sfm",
    "h5py": "sfm",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "ray": "cluster",
    "rerun": "viewer",
    "starlette": "app",
    "uvicorn": "app",
}


def require(package: str, wanted_for: str) -> ModuleType:
    """Import a package, or a module of one, that the core does without.

    Raises:
        ImportError: It is not installed; the message says who wants it and how to install it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        owner = package.partition(".")[0]
        if error.name != owner:
            raise
        command = install_command(owner)
        raise ImportError(f"{wanted_for} needs {owner}: {command}", name=owner) from error


def install_command(package: str) -> str:
    """Say how to install an optional package."""
    extra = EXTRA_OF.get(package)
    return f"pip install 'tiepoint[{extra}]'" if extra else f"pip install {package}"
