"""Signatures: of one key and one content, in a file that no reader needs."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import fail, invoke, succeed
from tests.store.stores import ONE, build_arrays, count_up
from zindex.errors import ConfigError, NotReadyError, VerificationError
from zindex.store.open import open_store
from zindex.store.signature import SIGNATURE_KEY, check_signature, sign_store
from zindex.store.verify import verify_store

pytest.importorskip("cryptography", reason="needs the extra 'cluster'")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_arrays(tmp_path / "store", {ONE: count_up(10)})
    return tmp_path / "store"


def write_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a private key and its public key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, pem = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    private, public = folder / f"{name}.pem", folder / f"{name}.public.pem"
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, *plain))
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(pem, info))
    return private, public


def test_a_signature_is_of_one_key_and_one_content(root: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "own")
    _, other = write_keys(tmp_path, "other")
    with pytest.raises(VerificationError, match=r"must have a signature by the key in .* no file"):
        check_signature(root, public)
    named = sign_store(root, private)
    assert json.loads((root / SIGNATURE_KEY).read_bytes())["public_key"] == named
    check_signature(root, public)
    assert verify_store(root, key=str(public)).is_sound
    assert verify_store(root).notes == []
    np.testing.assert_array_equal(open_store(root)["one"], count_up(10))
    with pytest.raises(VerificationError, match=r"it is of another key, or of other content"):
        check_signature(root, other)
    # A forger who computes all digests again lacks the key.
    build_arrays(tmp_path / "forged", {ONE: count_up(10) + 1})
    (tmp_path / "forged" / SIGNATURE_KEY).write_bytes((root / SIGNATURE_KEY).read_bytes())
    [damage] = verify_store(tmp_path / "forged", key=str(public)).damages
    assert damage.key == SIGNATURE_KEY
    assert "other content" in damage.problem
    (root / SIGNATURE_KEY).write_bytes(b'{"signature":"\xc3\xa4"}')
    with pytest.raises(VerificationError, match="must have a signature"):
        check_signature(root, public)


def test_keys_of_another_kind_are_refused(root: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "own")
    for path in (public, tmp_path / "none.pem", root / "zarr.json"):
        with pytest.raises(ConfigError, match=r"must be a PEM file of an Ed25519 private key"):
            sign_store(root, path)
    with pytest.raises(ConfigError, match=r"must be a PEM file of an Ed25519 public key"):
        check_signature(root, private)
    (root / "zarr.json").unlink()
    with pytest.raises(NotReadyError):
        sign_store(root, private)


def test_commands(root: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "own")
    assert invoke("verify", root, "--key", public).exit_code == 1
    assert "is signed by" in succeed("sign", root, "--key", private)
    assert succeed("verify", root, "--key", public).endswith("sound\n")
    assert "public key" in fail("verify", root, "--key", private)
