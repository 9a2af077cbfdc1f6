"""Write the bill of materials: what the package is made of, with versions, licences and checksums.

The form is CycloneDX 1.5 as JSON. Nothing in it depends on the time or the machine, so two
installations of the same versions give the same file.

Source: https://cyclonedx.org/docs/1.5/json/
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import PackageMetadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import matcher
from matcher import assets, storage
from matcher.licences import declared, dependencies
from matcher.reading import read_toml
from matcher.registry import registry


def write_sbom(path: str | Path) -> int:
    """Write the bill of materials.

    Args:
        path: Of the file; missing folders are made.

    Returns:
        The number of components.
    """
    bill = make_sbom()
    storage.write(path, (json.dumps(bill, indent=1) + "\n").encode())
    return len(bill["components"])


def make_sbom() -> dict[str, Any]:
    """List the package, the distributions that it rests on, and the weights that it ships."""
    found = dependencies()
    packages = [
        {
            "type": "library",
            "bom-ref": name,
            "name": name,
            "version": each.version,
            "purl": f"pkg:pypi/{name}@{quote(each.version)}",
            "licenses": _licences(each.metadata),
        }
        for name, (each, _) in found.items()
    ]
    shipped = [_model(path) for path in sorted(assets.folder("models").glob("*/*.safetensors"))]
    own = {
        "type": "library",
        "bom-ref": "tiepoint",
        "name": "tiepoint",
        "version": matcher.__version__,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    needs = {"tiepoint": sorted([*found, *(model["bom-ref"] for model in shipped)])}
    needs |= {name: list(each) for name, (_, each) in found.items()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": [*packages, *shipped],
        "dependencies": [{"ref": name, "dependsOn": each} for name, each in needs.items()],
    }


def _model(path: Path) -> dict[str, Any]:
    """Describe weights that lie in the package: models/NAME/weights.safetensors."""
    name = path.parent.name
    recipe = path.with_name("recipe.toml")
    known = registry().get(name)
    licence = known.licence if known else str(read_toml(recipe)["licence"])
    return {
        "type": "machine-learning-model",
        "bom-ref": f"weights/{name}",
        "name": name,
        "version": known.version if known else matcher.__version__,
        "licenses": [{"license": {"name": licence}}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
    }


def _licences(about: PackageMetadata) -> list[dict[str, Any]]:
    """Write the licence that a distribution declares: an SPDX expression, or a name."""
    if "License-Expression" in about:
        return [{"expression": str(about["License-Expression"])}]
    return [{"license": {"name": declared(about)}}]
