"""The bill of materials names what is installed."""

from importlib.metadata import version

from tests.sbom import make_sbom


def test_the_bill_of_materials() -> None:
    found = {each["name"].lower(): each for each in make_sbom()["components"]}
    assert found["numpy"]["version"] == version("numpy")
    assert found["numpy"]["purl"] == f"pkg:pypi/numpy@{version('numpy')}"
    assert list(found) == sorted(found)
