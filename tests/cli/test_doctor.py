"""`fedflux doctor` says what is missing for which feature, by the extras that the project declares."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from fedflux.cli import doctor

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_extra_is_a_feature() -> None:
    named = {extra for extra, _ in doctor.FEATURES.values()}
    assert named == set(PROJECT["optional-dependencies"]) - {"dev"}


@pytest.mark.parametrize("name", doctor.FEATURES)
def test_a_feature_needs_what_its_extra_brings(name: str) -> None:
    extra, packages = doctor.FEATURES[name]
    brought = " ".join(PROJECT["optional-dependencies"][extra]).replace("[simulation]", " ray").replace("[", "-")
    for package in packages:
        assert re.search(rf"(^| ){re.escape(package)}\b", brought), f"{extra} does not bring {package}"


def test_what_is_missing_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "onnx":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(doctor, "version", version)
    missing = doctor._feature("bundles and serving", *doctor.FEATURES["bundles and serving"])
    assert not missing["ok"]
    assert not missing["needed"]
    assert missing["detail"] == "no onnx: pip install 'fedflux[serve]'"
    assert doctor._feature("privacy (--epsilon)", *doctor.FEATURES["privacy (--epsilon)"])["detail"] == "opendp 1.0"
