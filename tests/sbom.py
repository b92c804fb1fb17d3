"""The bill of materials of this environment: ``python -m tests.sbom`` prints CycloneDX JSON."""

import json
import sys
from importlib.metadata import Distribution, distributions
from typing import Any


def describe(package: Distribution) -> dict[str, Any]:
    """Return an installed package as a component of CycloneDX 1.5."""
    name = package.metadata["Name"]
    found = package.metadata.get_all("License-Expression") or package.metadata.get_all("License")
    component = {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{package.version}",
    }
    short = [text for text in found or () if len(text) < 60]
    return component | ({"licenses": [{"license": {"name": short[0]}}]} if short else {})


def make_sbom() -> dict[str, Any]:
    """Return the bill of materials of all installed packages."""
    packages = {each.metadata["Name"].lower(): describe(each) for each in distributions()}
    components = [packages[name] for name in sorted(packages)]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


if __name__ == "__main__":
    json.dump(make_sbom(), sys.stdout, indent=1)
