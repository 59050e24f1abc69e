"""Buckets of object stores with S3's protocol: client, listing, one-line errors.

GDAL reads rasters; boto3, Amazon's own client, lists and writes objects: GDAL's listing ends silently at a
failed request, which would drop scenes, and GDAL writes without conditions and checksums. Both take the same
settings from the environment, GDAL's names first.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from segmenter.base.addresses import masked_text
from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.base.invocation import installation
from segmenter.raster.remote.settings import set_up_remote

_GOOGLE = "https://storage.googleapis.com"
_NEEDED = f"boto3, which is not installed: {installation('remote')}"
_REASONS = {
    "NoSuchBucket": "there is no such bucket",
    "AccessDenied": "access is denied; are these the right credentials, with permission for this?",
    "403": "access is denied; are these the right credentials, with permission for this?",
    "404": "there is no such bucket or object",
    "InvalidAccessKeyId": "the store does not know this access key",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "ExpiredToken": "the credentials have expired",
    "PermanentRedirect": "the bucket lies in another region; set AWS_REGION",
}


class BucketPrefix(NamedTuple):
    """A bucket and a key prefix in it, without a slash at its end."""

    scheme: str
    bucket: str
    prefix: str

    @classmethod
    def of(cls, address: str) -> BucketPrefix | None:
        """Return the bucket and prefix of a GDAL address; None if its bucket cannot be listed."""
        for scheme in ("s3", "gs"):
            if address.startswith(f"/vsi{scheme}/"):
                bucket, _, prefix = address.removeprefix(f"/vsi{scheme}/").partition("/")
                return cls(scheme, bucket, prefix.strip("/"))
        return None

    def key(self, name: str) -> str:
        """Return the key of a relative path."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


class Listed(NamedTuple):
    """One object: key relative to a place, size in bytes, time of the last change in seconds, ETag."""

    name: str
    size: int
    changed: int
    tag: str | None = None


def listing(place: BucketPrefix) -> Iterator[Listed]:
    """Yield all objects below a place in the order of their keys; one request per thousand."""
    start = place.key("")
    with naming_store(str(place), "cannot list it"):
        pages = client(place.scheme).get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=place.bucket, Prefix=start, **payer()):
            for one in page.get("Contents", ()):
                if not one["Key"].endswith("/"):  # what some tools make for folders
                    name = one["Key"].removeprefix(start)
                    yield Listed(name, one["Size"], int(one["LastModified"].timestamp()), one.get("ETag"))


def payer() -> dict[str, str]:
    """Return the request argument for buckets whose reader pays."""
    who = os.environ.get("AWS_REQUEST_PAYER")
    return {"RequestPayer": who} if who else {}


def client(scheme: str = "s3") -> Any:
    """Return the client of a store, for several threads, with GDAL's settings."""
    set_up_remote()
    names = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_S3_ENDPOINT", "AWS_REGION", "AWS_NO_SIGN_REQUEST")
    more = ("GS_ACCESS_KEY_ID", "GS_NO_SIGN_REQUEST", "CPL_GS_ENDPOINT", "GDAL_HTTP_MAX_RETRY")
    return _client(scheme, tuple(os.environ.get(name) for name in (*names, *more)))


@functools.cache
def _client(scheme: str, settings: tuple[str | None, ...]) -> Any:
    try:
        import boto3  # heavy, and not everybody's
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError:
        raise SegmenterError(f"{scheme}://: buckets are listed and written with {_NEEDED}") from None
    unsigned = _yes("GS_NO_SIGN_REQUEST" if scheme == "gs" else "AWS_NO_SIGN_REQUEST")
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1 + int(os.environ["GDAL_HTTP_MAX_RETRY"])},
        connect_timeout=float(os.environ["GDAL_HTTP_CONNECTTIMEOUT"]),
        read_timeout=float(os.environ["GDAL_HTTP_LOW_SPEED_TIME"]),
        **({"signature_version": UNSIGNED} if unsigned else {}),
        **({"request_checksum_calculation": "when_required"} if scheme == "gs" else {}),
    )
    where = _google(unsigned) if scheme == "gs" else _amazon()
    with naming_store(f"{scheme}://", "cannot be set up"):
        return boto3.session.Session().client("s3", config=config, **where)


def _amazon() -> dict[str, str | None]:
    host = os.environ.get("AWS_S3_ENDPOINT")
    scheme = "http" if os.environ.get("AWS_HTTPS", "YES").upper() in ("NO", "FALSE", "OFF") else "https"
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if host is None:
        return {"region_name": region}
    endpoint = host if "://" in host else f"{scheme}://{host}"
    return {"endpoint_url": endpoint, "region_name": region or "us-east-1"}


def _google(unsigned: bool) -> dict[str, str | None]:
    """Return the settings of a client for Google's store, with its HMAC keys for S3's protocol."""
    key, secret = (os.environ.get(f"GS_{name}") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    if not unsigned and not (key and secret):
        raise DatasetError(
            "gs://: a bucket is listed with GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY (HMAC keys), or with "
            "GS_NO_SIGN_REQUEST=YES where it is public; otherwise name the files in dataset.files"
        )
    endpoint = os.environ.get("CPL_GS_ENDPOINT", _GOOGLE).rstrip("/")
    return {
        "endpoint_url": endpoint,
        "region_name": "auto",
        "aws_access_key_id": key,
        "aws_secret_access_key": secret,
    }


def _yes(name: str) -> bool:
    return os.environ.get(name, "").upper() in ("YES", "TRUE", "ON", "1")


@contextlib.contextmanager
def naming_store(where: str, what: str) -> Iterator[None]:
    """Convert boto3's errors in a block to one line with the address and, if known, a remedy."""
    try:
        yield
    except SegmenterError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("botocore", "boto3", "s3transfer")):
            raise
        raise SegmenterError(where, f"{what}: {_why(error)}") from None


def _why(error: Exception) -> str:
    kind = type(error).__name__
    if kind in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return (
            "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or "
            "AWS_NO_SIGN_REQUEST=YES for a public bucket"
        )
    return _REASONS.get(code_of(error)) or masked_text(" ".join(str(error).split()))


def code_of(error: BaseException) -> str:
    """Return the store's code of an error; empty if the error is not a store's answer."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
