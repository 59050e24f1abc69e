"""Writing of packs: aside, chunk by chunk, and under their name once they are whole."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.base.sealed import sealed
from segmenter.config.datasets import CacheCodec
from segmenter.grid.geometry import Size
from segmenter.tiles.cache.file import (
    END,
    FORMAT,
    SIGNATURE,
    TABLE,
    Content,
    Kind,
    Rows,
    chunk_of,
    lz4,
)

_WORTH = 0.9
"""Share of its bytes that a chunk may keep at most to be stored compressed."""


class PackWriter:
    """Writes a pack aside; for one thread. It counts once `finish` has given it its name.

    Attributes:
        bytes: written so far.
    """

    def __init__(self, path: Path, aside: Path, kind: Kind, codec: CacheCodec) -> None:
        """Begin a pack.

        Raises:
            OSError: it cannot be written there.
        """
        self._path, self._aside, self._kind, self._codec = path, aside, kind, codec
        self._file = aside.open("xb")
        self._table: list[tuple[int, int, int]] = []
        self._contents: list[Content] = []
        self.bytes = 0

    def add(self, key: str, size: Size, rows: Iterable[Rows], nodata: tuple[float | None, ...] = ()) -> None:
        """A scene's rows from the top, in strips of a multiple of `CHUNK` but for the last.

        Where they cannot be had, the pack is as it was before.

        Raises:
            DatasetError: they are not those of the scene; OSError: there is no space.
        """
        chunk, table, masks = chunk_of(size), len(self._table), list[tuple[int, int, int]]()
        try:
            form, dtype, done = (size.width,), "", 0
            for pixels, valid in rows:
                if dtype and (pixels.dtype.str, pixels.shape[1:]) != (dtype, form):
                    raise _changed(self._path)
                dtype, form = pixels.dtype.str, pixels.shape[1:]
                self._add_strip(pixels, valid, chunk, masks)
                done += len(pixels)
            if done != size.height or form[0] != size.width:
                raise _changed(self._path)
        except BaseException:
            del self._table[table:]
            self.bytes = sum(length for _, length, _ in self._table)
            self._file.seek(self.bytes)  # on a full disk an error of its own: the pack is lost
            self._file.truncate()
            raise
        self._table += masks
        shape = (size.height, *form)
        self._contents.append(
            Content(
                key=key,
                dtype=dtype,
                shape=shape,
                chunk=chunk,
                codec=self._codec,
                first=table,
                nodata=nodata,
            )
        )

    def _add_strip(
        self,
        pixels: NDArray[Any],
        valid: NDArray[np.bool_] | None,
        chunk: tuple[int, int],
        masks: list[tuple[int, int, int]],
    ) -> None:
        for row in range(0, len(pixels), chunk[0]):
            for col in range(0, pixels.shape[1], chunk[1]):
                part = slice(row, row + chunk[0]), slice(col, col + chunk[1])
                self._table.append(self._stored(pixels[part]))
                if valid is not None:
                    none_lacks = bool(valid[part].all())
                    masks.append((0, 0, 0) if none_lacks else self._stored(np.packbits(valid[part])))

    def _stored(self, array: NDArray[Any]) -> tuple[int, int, int]:
        """Write a chunk; gives its row of the table."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if self._codec == "lz4":
            small = lz4().compress(raw, asbytes=True)
            raw = memoryview(small) if len(small) < _WORTH * len(raw) else raw
        self._file.write(raw)
        at, self.bytes = self.bytes, self.bytes + len(raw)
        return at, len(raw), zlib.crc32(raw)

    def finish(self) -> None:
        """Bring it to the disk and give it its name; without a scene it goes.

        Raises:
            OSError: there is no space.
        """
        if not self._contents:
            return self.discard()
        table = np.array(self._table, TABLE)
        facts = {"format": FORMAT, "kind": self._kind, "chunks": len(table)}
        facts |= {"table_crc": zlib.crc32(table.data)}
        contents = [one.model_dump(mode="json") for one in self._contents]
        text = sealed(json.dumps({**facts, "contents": contents})).encode()
        end = END.pack(SIGNATURE, self.bytes + table.nbytes, len(text), 0)[:-4]
        self._file.write(table.data)
        self._file.write(text + end + struct.pack("<I", zlib.crc32(end)))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._aside.rename(self._path)
        return None

    def discard(self) -> None:
        """Remove what was not finished."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._aside.unlink(missing_ok=True)


def _changed(path: Path) -> DatasetError:
    return DatasetError(f"{path}: the scene has changed while it was decoded; start again")
