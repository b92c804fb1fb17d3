"""Detached signatures of committed stores: an Ed25519 key signs the bytes of the root zarr.json.

The root holds the digest of the manifest, which holds size and checksum of every shard, so a
signature proves who committed all of it. Checksums alone only detect accidents.
"""

from functools import partial
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError, StoreError, VerificationError
from zindex.io import files
from zindex.io.local import read_file
from zindex.io.objects import PlaceLike, place_of
from zindex.lazy import need
from zindex.store.commit import ROOT_KEY, parse_json, read_root

#: Key of the signature below a store's root; readers do not need it.
SIGNATURE_KEY = "_zindex/signature.json"
# Domain separator: signatures of this prefix are used for nothing else.
_PREFIX = b"zindex store 1\n"
_MAX_KEY_NBYTES = 1 << 14


def sign_store(url: PlaceLike, key: Path | str) -> str:
    """Sign a committed store, replacing an earlier signature.

    Parameters
    ----------
    url
        Path or URL of the store.
    key
        PEM file of an Ed25519 private key, without a passphrase: ``openssl genpkey -algorithm
        ed25519 -out key.pem``.

    Returns
    -------
    public_key
        The public key, in hex.

    Raises
    ------
    NotReadyError, StoreError, VerificationError
        If there is no committed store, or its root is damaged.
    ConfigError
        If the file holds no such key, or the library ``cryptography`` is not installed.
    """
    root = place_of(url)
    read_root(root)
    own = _read_key(key, is_private=True)
    signature = own.sign(_PREFIX + files.read_file(root / ROOT_KEY))
    public: str = own.public_key().public_bytes_raw().hex()
    text = f'{{"algorithm":"ed25519","public_key":"{public}","signature":"{signature.hex()}"}}'
    files.write_once(root / SIGNATURE_KEY, [text.encode()], replace=True)
    return public


def check_signature(url: PlaceLike, key: Path | str) -> None:
    """Check that the owner of a key signed a store's root, and thereby everything it describes.

    Parameters
    ----------
    url
        Path or URL of the store.
    key
        PEM file of the Ed25519 public key: ``openssl pkey -in key.pem -pubout -out public.pem``.

    Raises
    ------
    VerificationError
        If root or signature are missing, or the signature does not match key and content.
    ConfigError
        If the file holds no such key, or the library ``cryptography`` is not installed.
    """
    root, public = place_of(url), _read_key(key, is_private=False)
    wrong = need("cryptography.exceptions", "--key", "zindex[cluster]").InvalidSignature
    try:
        content = files.read_file(root / ROOT_KEY)
        stored = files.read_file(root / SIGNATURE_KEY, limit=_MAX_KEY_NBYTES)
        signature = parse_json(stored, SIGNATURE_KEY).get("signature")
        public.verify(bytes.fromhex(str(signature)), _PREFIX + content)
    except (StoreError, ValueError, wrong) as error:
        reason = str(error) or "it is of another key, or of other content"
        raise VerificationError(
            f"{root} must have a signature by the key in {key}, but {reason}; do not use the "
            "store, or sign it with `zindex sign` if it is yours"
        ) from error


def _read_key(path: Path | str, *, is_private: bool) -> Any:
    """Return the Ed25519 key of a PEM file."""
    keys = need("cryptography.hazmat.primitives.asymmetric.ed25519", "--key", "zindex[cluster]")
    pem = need("cryptography.hazmat.primitives.serialization", "--key", "zindex[cluster]")
    kind, load = keys.Ed25519PublicKey, pem.load_pem_public_key
    if is_private:
        kind, load = keys.Ed25519PrivateKey, partial(pem.load_pem_private_key, password=None)
    try:
        key: Any = load(read_file(Path(path), limit=_MAX_KEY_NBYTES))
    except (StoreError, ValueError, TypeError) as error:
        key, reason = None, str(error)
    else:
        reason = f"it holds {type(key).__name__}"
    if not isinstance(key, kind):
        noun = "private key without a passphrase" if is_private else "public key"
        raise ConfigError(f"{path} must be a PEM file of an Ed25519 {noun}: {reason}; give another")
    return key
