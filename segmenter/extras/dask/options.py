"""Options that name a cluster: `--workers N`, or `--scheduler ADDRESS` with the certificates of TLS."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from segmenter.base.errors import ClusterError
from segmenter.base.options import option

_option = partial(option, group="cluster")
_SCHEMES = ("tcp", "tls", "inproc")
"""inproc: a cluster of threads in this process, for Python users."""


@dataclass(frozen=True)
class ClusterOptions:
    """Cluster to work on.

    Raises:
        ClusterError: options exclude each other, or one is missing.
    """

    workers: int | None = _option(
        None,
        "number of processes of this machine to work in, started with Dask (default: this process alone; "
        "docs/machines.md)",
        "N",
        least=1,
        most=1000,
    )
    scheduler: str | None = _option(
        None,
        "address of a running Dask scheduler whose workers do the work, as tcp://host:8786 (default: this "
        "process works alone)",
        "ADDRESS",
    )
    tls_ca: Path | None = _option(
        None, "PEM file with the certificate authority, for --scheduler tls://…", "FILE"
    )
    tls_cert: Path | None = _option(
        None, "PEM file with the certificate of this process, for --scheduler tls://…", "FILE"
    )
    tls_key: Path | None = _option(
        None, "PEM file with the private key of that certificate, for --scheduler tls://…", "FILE"
    )

    def __post_init__(self) -> None:
        if self.workers is not None and self.scheduler is not None:
            raise ClusterError(
                f"--workers {self.workers}",
                f"starts processes here, and --scheduler {self.scheduler} has its own; give one of the two",
            )
        if self.workers is None and self.scheduler is None:
            raise ClusterError(
                "--tls-ca, --tls-cert and --tls-key are for --scheduler tls://HOST:PORT, got none"
            )
        if self.scheduler is not None:
            _check_address(self.scheduler)
        self._check_tls()

    @property
    def asked(self) -> str:
        """The option as given."""
        return f"--scheduler {self.scheduler}" if self.scheduler else f"--workers {self.workers}"

    def _check_tls(self) -> None:
        files = {"--tls-ca": self.tls_ca, "--tls-cert": self.tls_cert, "--tls-key": self.tls_key}
        encrypted = (self.scheduler or "").startswith("tls://")
        named = [name for name, path in files.items() if path is not None]
        if named and not encrypted:
            raise ClusterError(
                f"{named[0]}: is for --scheduler tls://HOST:PORT, got {self.asked}"
                + ("" if self.scheduler else "; --workers encrypts with a certificate of its own")
            )
        if not encrypted:
            return
        for name, path in files.items():
            if path is None:
                raise ClusterError(
                    self.asked, expected="--tls-ca, --tls-cert and --tls-key", got=f"no {name}"
                )
            if not path.is_file():
                raise ClusterError(f"{name} {path}", expected="a PEM file, there is none")


def _check_address(address: str) -> None:
    scheme, _, rest = address.partition("://")
    if scheme in _SCHEMES and rest and (scheme == "inproc" or rest.rpartition(":")[2].isdigit()):
        return
    raise ClusterError("--scheduler", expected="tcp://HOST:PORT or tls://HOST:PORT", got=address)
