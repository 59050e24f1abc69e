"""moto's S3 on loopback, that can misbehave as the real one does; no request leaves the machine."""

import contextlib
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.file_server import PROXIES

_names = itertools.count()


class Store:
    """A store with an empty bucket.

    Attributes:
        bucket: name of the bucket.
        asked: method and path with query of each request.
        fault: called with method and path of a request; the status that is answered instead, or None.
        client: boto3's.
    """

    def __init__(self, port: int, asked: list[tuple[str, str]]) -> None:
        import boto3

        self.bucket, self.asked = f"bucket-{next(_names)}", asked
        self.endpoint = f"http://127.0.0.1:{port}"
        self.fault: Callable[[str, str], int | None] = lambda method, path: None
        self.client = boto3.session.Session().client("s3", endpoint_url=self.endpoint)
        self.client.create_bucket(Bucket=self.bucket)
        asked.clear()

    def put_folder(self, folder: Path, prefix: str = "") -> None:
        """Upload all files of a folder."""
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            key = f"{prefix}{path.relative_to(folder).as_posix()}"
            self.client.put_object(Bucket=self.bucket, Key=key, Body=path.read_bytes())
        self.asked.clear()

    def get(self, key: str) -> bytes:
        """Content of an object."""
        content: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return content

    def keys(self) -> list[str]:
        """Of all objects."""
        found = self.client.list_objects_v2(Bucket=self.bucket)
        return [one["Key"] for one in found.get("Contents", ())]

    def unfinished(self) -> list[Any]:
        """Uploads in parts that were begun and not ended."""
        return list(self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ()))


@contextlib.contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store that GDAL and boto3 find by the environment."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app, asked, stores = _app(), [], []

    def answer(environ: dict[str, Any], start: Any) -> Any:
        path = environ["PATH_INFO"] + ("?" + environ["QUERY_STRING"]) * bool(environ["QUERY_STRING"])
        asked.append((environ["REQUEST_METHOD"], path))
        status = stores[0].fault(environ["REQUEST_METHOD"], path) if stores else None
        if status is None:
            return app(environ, start)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start(f"{status} Made", [("Content-Length", "0")])
        return [b""]

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    _set_environment(monkeypatch, server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        stores.append(Store(server.server_port, asked))
        yield stores[0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@functools.cache
def _app() -> Any:
    """moto's application, one for all tests: buckets have names of their own."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    return DomainDispatcherApplication(create_backend_app)


def _set_environment(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    for name in (*PROXIES, "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_NO_SIGN_REQUEST"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "AWS_S3_ENDPOINT": f"127.0.0.1:{port}",
        "AWS_HTTPS": "NO",
        "AWS_VIRTUAL_HOSTING": "FALSE",
        "AWS_ACCESS_KEY_ID": "key-of-a-test",
        "AWS_SECRET_ACCESS_KEY": "secret-of-a-test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
        "GDAL_HTTP_RETRY_DELAY": "0.005",
        "GDAL_HTTP_MAX_RETRY": "2",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
