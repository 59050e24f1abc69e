"""Upload of finished outputs to a bucket: objects appear completely, equal ones are not sent again.

An object's metadata identify it: `sha256` of its bytes, and for outputs of an input `made-of`, a digest of
input, run and options. So the same command can continue on any machine, with an empty working folder.

**Two callers of one prefix** do not mix outputs: an object is written on the condition that it is unchanged
since this caller's check (`If-None-Match`, `If-Match`). If two make the same map, the second one finds it; if
the maps differ, the first to finish wins, and the other reports it in a line.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.base.addresses import mask_secrets
from segmenter.base.errors import DatasetError, OutputError, RasterError, SegmenterError, failing, plain
from segmenter.base.files import caches, gibibytes
from segmenter.base.sealed import digest
from segmenter.base.terminal import say
from segmenter.mapping.finisher import Finisher
from segmenter.mapping.folder.journal import Facts, JournalEntry, file_facts
from segmenter.raster.remote.buckets import BucketPrefix, client, code_of, listing, naming_store, payer
from segmenter.raster.remote.settings import RemotePath

if TYPE_CHECKING:
    from segmenter.mapping.call import Call
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.outcome import Outcome
    from segmenter.mapping.style import MapStyle

PART_BYTES = 1 << 23
"""Bytes of each part of an object; smaller objects are sent in one request. A thread holds two parts."""
_MOST_PARTS = 9_000
_THREADS = 4
_REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
_NONE = ("404", "NoSuchKey", "NotFound")


@dataclass(frozen=True)
class _There:
    """State of an object in the store."""

    etag: str
    size: int
    sha256: str
    made_of: str


def digest_of_sources(entry: JournalEntry) -> str:
    """Return a digest of everything that the outputs of an entry depend on."""
    return digest({"input": entry.input, "run": entry.run, "options": entry.options})


class Uploads(Finisher):
    """Outputs of one call on their way to a bucket: the call's last finisher, and its store.

    For a single thread.

    Attributes:
        place: bucket and prefix, to which file names are added.
        keep: True to keep files in the working folder until the end, for scores and pictures.
        sent, equal: numbers of uploaded objects, and of existing equal ones.
        sent_bytes: bytes uploaded.
    """

    def __init__(self, address: str) -> None:
        """Store an address in a bucket.

        Raises:
            DatasetError: the address is not writable.
        """
        place = BucketPrefix.of(RemotePath.of(address).address)
        if place is None or place.scheme != "s3" or not place.bucket:
            raise DatasetError(
                f"--output {mask_secrets(address)}",
                expected="a folder or s3://BUCKET/PREFIX",
                remedy="for other stores write to a folder, and copy it with their own tool",
            )
        self.place, self.keep = place, False
        self.sent = self.equal = self.sent_bytes = 0
        self._address = address
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="upload")
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._waiting: list[tuple[Future[None], list[Path]]] = []
        self._listed: set[str] | None = None

    @cached_property
    def _client(self) -> Any:
        return client(self.place.scheme)

    @property
    def working_folder(self) -> Path:
        """Folder of maps before their upload, unless `--work` sets it: one folder for each address."""
        digested = hashlib.sha256(self._address.rstrip("/").encode()).hexdigest()[:12]
        return caches() / "maps" / f"{self.place.bucket}-{digested}"

    def check(self, call: Call, jobs: Sequence[MapJob]) -> None:
        """Refuse an unusable bucket or too small a disk; print the destination of maps.

        Raises:
            SegmenterError: bucket or disk is unusable; the message names it.
        """
        scored = any(job.label is not None for job in jobs)
        self.keep = scored or any(finisher.reads_maps for finisher in call.finishers)
        with naming_store(f"--output {self.place}", "cannot be used"):
            self._client.head_bucket(Bucket=self.place.bucket)
        style, sizes = call.style, [_most_bytes(call.style, job) for job in jobs]
        free = shutil.disk_usage(style.folder).free
        if max(sizes) > free:
            raise OutputError(
                style.folder,
                f"the largest map may take {gibibytes(max(sizes))} before it is uploaded, {gibibytes(free)} "
                "are free",
                remedy="make room, or name another folder with --work",
            )
        room = gibibytes(sum(sizes) if self.keep else min(sum(sizes), free))
        say(
            f"maps are written and checked in {plain(str(style.folder))} (at most {room} there, "
            f"{gibibytes(free)} are free), then uploaded to {self.place}"
        )

    def holds(self, files: Sequence[Path], entry: JournalEntry, *, now: bool = False) -> bool:
        """Return whether the bucket has all outputs of an input, in their current state.

        Args:
            now: check again, even if the first call found nothing.

        Raises:
            SegmenterError: the store does not answer.
        """
        if not now and not all(self.has(path.name) for path in files):
            return False
        objects = [self._look(path.name) for path in files]
        return all(one is not None and one.made_of == digest_of_sources(entry) for one in objects)

    def has(self, name: str) -> bool:
        """Return whether an object existed at the first call.

        Raises:
            SegmenterError: the store does not answer.
        """
        if self._listed is None:
            self._listed = {one.name for one in listing(self.place)}
        return name in self._listed

    def fetch(self, files: Sequence[Path]) -> None:
        """Download outputs that are missing in the working folder.

        Raises:
            SegmenterError: the download failed.
        """
        for path in files:
            if path.exists():
                continue
            aside = path.with_name(f".{path.name}.fetched")
            try:
                with naming_store(self._where(path.name), "cannot be fetched"), aside.open("wb") as file:
                    key = self.place.key(path.name)
                    self._client.download_fileobj(self.place.bucket, key, file, ExtraArgs=payer())
                uploaded = self._look(path.name)
                if uploaded is None or file_facts(aside)["sha256"] != uploaded.sha256:
                    raise RasterError(self._where(path.name), "is not what it was when it was uploaded")
                aside.replace(path)
            except OSError as error:
                raise OutputError(path, f"cannot write it: {error.strerror}") from None
            finally:
                aside.unlink(missing_ok=True)

    def add(self, files: Sequence[Path], entry: JournalEntry | None = None) -> None:
        """Upload finished files in threads."""
        existing = [path for path in files if path.exists()]

        def send_all() -> None:
            for path in existing:
                self._send(path, entry)
            if not self.keep:
                for path in existing:
                    path.unlink(missing_ok=True)

        self._waiting.append((self._pool.submit(send_all), existing))

    def finish(self, call: Call, outcome: Outcome) -> list[SegmenterError]:
        """Upload the files written at the end, and wait for all uploads; return the errors."""
        for path in outcome.further:
            self.add([path])
        failures = self.wait()
        sent = f"{self.sent} file{'s' * (self.sent != 1)}"
        equal = f"; {self.equal} were there and equal" if self.equal else ""
        say(f"{sent} uploaded to {self.place}: {gibibytes(self.sent_bytes)}{equal}")
        if failures:
            folder = plain(str(call.request.output))
            say(f"what is not uploaded stays in {folder}; the same command goes on", aside=True)
        return failures

    def wait(self) -> list[SegmenterError]:
        """Wait for all uploads, and remove uploaded files from this machine; return the errors."""
        failures: list[SegmenterError] = []
        for future, files in self._waiting:
            try:
                future.result()
            except SegmenterError as error:
                failures.append(error)
                continue
            for path in files:
                path.unlink(missing_ok=True)
        self._waiting.clear()
        self._pool.shutdown()
        return failures

    def close(self) -> None:
        """Cancel unsent uploads after an error or Ctrl-C; wait only for parts in transfer."""
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    # ------------------------------------------------------------------------------ objects

    def _where(self, name: str) -> str:
        return f"{self.place}/{name}"

    def _look(self, name: str) -> _There | None:
        with naming_store(self._where(name), "cannot be looked at"):
            try:
                head = self._client.head_object(Bucket=self.place.bucket, Key=self.place.key(name), **payer())
            except Exception as error:
                if code_of(error) in _NONE:
                    return None
                raise
        metadata = head.get("Metadata", {})
        return _There(
            head["ETag"], head["ContentLength"], metadata.get("sha256", ""), metadata.get("made-of", "")
        )

    def _send(self, path: Path, entry: JournalEntry | None) -> None:
        with failing(OutputError, path, "cannot read it"):
            facts = (entry.outputs if entry is not None else {}).get(path.name) or file_facts(path)
        marks = {
            "sha256": facts["sha256"],
            **({"made-of": digest_of_sources(entry)} if entry is not None else {}),
        }
        before = self._look(path.name)
        if self._is_equal(before, facts, marks):
            return
        condition = {"IfNoneMatch": "*"} if before is None else {"IfMatch": before.etag}
        where = self._where(path.name)
        with naming_store(where, "cannot be uploaded"):
            try:
                self._write(path, facts, marks, condition)
            except Exception as error:
                if code_of(error) not in _REFUSED:
                    raise
                if not self._is_equal(self._look(path.name), facts, marks):
                    raise OutputError(
                        where,
                        "was written by another call in the meantime, and is left as it is",
                        remedy="the same command again replaces it",
                    ) from None
                return
        with self._lock:
            self.sent += 1
            self.sent_bytes += facts["bytes"]

    def _is_equal(self, there: _There | None, facts: Facts, marks: dict[str, str]) -> bool:
        """Return whether the object equals the local file; count it if so."""
        equal = there is not None and (there.size, there.sha256) == (facts["bytes"], facts["sha256"])
        equal = equal and there is not None and there.made_of == marks.get("made-of", "")
        with self._lock:
            self.equal += equal
        return equal

    def _write(self, path: Path, facts: Facts, marks: dict[str, str], condition: dict[str, str]) -> None:
        what = {"Bucket": self.place.bucket, "Key": self.place.key(path.name), **payer()}
        parts = _parts(path, facts)
        if facts["bytes"] <= PART_BYTES:
            self._client.put_object(**what, Body=b"".join(parts), Metadata=marks, **condition)
        else:
            self._write_parts(what, parts, marks, condition)

    def _write_parts(
        self, what: dict[str, str], parts: Iterator[bytes], marks: dict[str, str], condition: dict[str, str]
    ) -> None:
        """Write an object in parts; it appears only with the last request, and errors remove the parts."""
        upload = self._client.create_multipart_upload(**what, Metadata=marks)["UploadId"]
        done = []
        try:
            for number, body in enumerate(parts, 1):
                if self._stopped.is_set():
                    raise OutputError(what["Key"], "interrupted")  # nobody hears of it
                answer = self._client.upload_part(**what, UploadId=upload, PartNumber=number, Body=body)
                done.append({"PartNumber": number, **{k: answer[k] for k in _PART if k in answer}})
            self._client.complete_multipart_upload(
                **what, UploadId=upload, MultipartUpload={"Parts": done}, **condition
            )
        except BaseException:
            with contextlib.suppress(Exception):  # the store removes them by its own rules at last
                self._client.abort_multipart_upload(**what, UploadId=upload)
            raise


_PART = ("ETag", "ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA256")


def _parts(path: Path, facts: Facts) -> Iterator[bytes]:
    """Yield a file's bytes in parts; the last part only if the file matches the journal.

    Raises:
        OutputError: the file does not match, or cannot be read.
    """
    size, total = max(PART_BYTES, -(-int(facts["bytes"]) // _MOST_PARTS)), hashlib.sha256()
    with failing(OutputError, path, "cannot read it"), path.open("rb") as file:
        part = file.read(size)
        while True:
            total.update(part)
            after = file.read(size)
            if not after and total.hexdigest() != facts["sha256"]:
                raise OutputError(path, "has changed since it was finished", remedy="it is not uploaded")
            yield part
            if not after:
                return
            part = after


def _most_bytes(style: MapStyle, job: MapJob) -> int:
    """Return the uncompressed size in bytes of a map's files and its partial map."""
    kind = style.request.probabilities
    each = 0 if kind is None else len(style.classes) * (1 if kind == "uint8" else 2)
    both = style.map_bytes + int(style.wanted.confidence)
    sets, computed = (0, each) if style.sets is None else (style.sets.pixel_bytes, 4 * len(style.classes))
    return job.part.size.pixels * (both + each + sets + both + computed)
