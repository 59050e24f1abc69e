"""Command `python -m fuzz`: changed files for everything that opens files, for minutes or some cases."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from fuzz.campaign import CLEAN, Campaign, kept
from fuzz.target import Target
from fuzz.worker import Case

_APART = 10**9
"""Numbers of a seed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 1 if there are findings."""
    args = _parser().parse_args(arguments)
    if args.replay:
        return _replay(args)
    targets: dict[str, Target] = importlib.import_module(args.table).TARGETS
    names = args.target or list(targets)
    if unknown := set(names) - set(targets):
        print(f"error: --target {min(unknown)}: expected {', '.join(targets)}", file=sys.stderr)
        return 2
    campaign = Campaign(args.table, args.found, args.seconds)
    try:
        campaign.run(_cases(names, campaign.spent, args), args.workers)
    finally:
        _show(campaign, names)
    return int(bool(campaign.findings))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="how long (default: 5)")
    parser.add_argument("--cases", type=int, help="so many of each target instead, the same each time")
    parser.add_argument("--target", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="another gives other cases")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--seconds", type=float, default=20, help="of its own that a case may take (default: 20)"
    )
    parser.add_argument("--found", type=Path, default=Path("fuzz/found"), help="folder for files that fail")
    parser.add_argument(
        "--replay", type=Path, metavar="DIR", help="open a file that was kept there once more"
    )
    parser.add_argument("--table", default="fuzz.targets", help=argparse.SUPPRESS)
    return parser


def _cases(names: Sequence[str], spent: Mapping[str, float], args: argparse.Namespace) -> Iterator[Case]:
    """As many of all targets, or those of which the workers were least busy with next."""
    first = args.seed * _APART
    if args.cases is not None:
        yield from (Case(name, first + number) for number in range(args.cases) for name in names)
        return
    end = time.monotonic() + 60 * args.minutes
    numbers = {name: count(first) for name in names}
    while time.monotonic() < end:
        name = min(names, key=lambda name: spent[name])
        yield Case(name, next(numbers[name]))


def _show(campaign: Campaign, names: Sequence[str]) -> None:
    print(f"{'target':12} {'cases':>7} {'refused':>8} {'same':>7} {'other':>7} {'findings':>9}")
    for name in names:
        cases = sum(n for (target, _), n in campaign.counts.items() if target == name)
        clean = [campaign.counts[name, kind] for kind in CLEAN]
        print(f"{name:12} {cases:7} {clean[0]:8} {clean[1]:7} {clean[2]:7} {cases - sum(clean):9}")
    for (target, kind, signature), number in campaign.findings.most_common():
        print(f"\n{target}: {kind}: {signature} ({number} cases)")
        for folder in campaign.signatures.get((target, kind, signature), ()):
            print(f"  python -m fuzz --replay {folder}")


def _replay(args: argparse.Namespace) -> int:
    verdict = Campaign(args.table, args.found, args.seconds).judge(kept(args.replay))
    print(f"{verdict.kind}: {verdict.signature}\n{verdict.said}")
    return int(verdict.kind not in CLEAN)


if __name__ == "__main__":
    sys.exit(main())
