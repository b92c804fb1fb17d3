"""The lowest versions that zindex allows, as constraints for pip: ``python -m tests.lowest``."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

#: Extras that are not for users: their packages are as new as `constraints.txt` has them.
DEVELOPMENT = {"docs", "oracle", "test"}


def list_requirements() -> list[Requirement]:
    """Return what zindex and its extras need of other packages."""
    path = Path(__file__).parents[1] / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"]]
    for name, extra in project["optional-dependencies"].items():
        texts += [] if name in DEVELOPMENT else extra
    found = [Requirement(text) for text in texts]
    return [requirement for requirement in found if requirement.name != "zindex"]


def lowest_versions() -> dict[str, str]:
    """Return the lowest version of each package.

    Raises
    ------
    ValueError
        If a package has no lower bound, or two.
    """
    lowest: dict[str, str] = {}
    for requirement in list_requirements():
        bounds = [each.version for each in requirement.specifier if each.operator == ">="]
        if len(bounds) != 1 or lowest.setdefault(requirement.name, *bounds) != bounds[0]:
            raise ValueError(f"pyproject.toml must have one lower bound, got {requirement}")
    return lowest


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in lowest_versions().items()))
