"""Mutants of the packages whose faults make no noise, and the share that the tests kill: `make mutants`.

A mutant is a module with one operator, comparison, number, condition, loop or decorator changed, as Cosmic
Ray changes it. A place is drawn first, then one of its changes. The places are ordered by a hash of the
seed and of what they say, as many of each package: a larger sample goes on from a smaller one, and most of a
sample stays when other lines change. Each result is kept at once; one is reused as long as its module's file
is the same.

The tests of a mutant are those of its module's name, those that import the module, those of its package and
the laws, in one process in a copy of the tree, up to the first failure; that test must pass without the
change.
A test's limit is in the program's own time (`fuzz/own_time.py`), so that a busy machine kills nothing.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain, islice, zip_longest
from operator import itemgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from benchmarks.page import renew, table
from segmenter.base.errors import SegmenterError, run_script
from segmenter.base.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = Path("benchmarks/results/mutants.json"), Path("studies/mutants.md")
MARK = "<!-- table: python -m benchmarks.mutants --page -->"
PACKAGES = {
    "sampling": "tests/sampling tests/laws/test_coverage.py",
    "tiles": "tests/tiles tests/laws/test_coverage.py",
    "raster/validity": "tests/raster tests/tiles/test_index.py",
    "raster/label": "tests/test_labels.py tests/raster tests/tiles/test_index.py",
    "training/losses": " ".join(f"tests/training/test_{name}.py" for name in ("losses", "emphasis"))
    + " tests/laws/test_equivalence.py",
    "evaluation": "tests/evaluation tests/training/test_validation.py tests/training/test_progress.py",
    "inference": "tests/inference tests/laws/test_tiles_disappear.py",
}
"""Package or module below `segmenter` → its tests."""
LIMIT = 90
"""Own seconds of a test; the longest of these tests takes a third of it."""
MEMORY = 8 << 30
"""Bytes that a mutant's tests may allocate."""
_SAME = ("_Eq_Is", "_NotEq_IsNot", "_Is_Eq", "_IsNot_NotEq")
_NOT_FOR_US = ("VariableReplacer", "VariableInserter", "ExceptionReplacer")
"""Ends of operators left out: equality and identity of a literal are one; of the others two ask for a name to
change, and one fails at errors that are named with their module."""
KILLED, SURVIVED = "killed", "survived"
Result = dict[str, Any]
Position = tuple[int, int]
Span = tuple[Position, Position]


class Mutant(NamedTuple):
    """One change of one file.

    Attributes:
        key: of what is changed into what, wherever it stands in the file.
        source: hash of the whole file.
        number: of the operator's change in the file.
    """

    key: str
    package: str
    path: str
    source: str
    operator: str
    number: int
    line: int
    was: str
    now: str


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 1 if less than the asked share dies."""
    given = _parse(arguments)
    results = json.loads(given.results.read_text(encoding="utf-8")) if given.results.is_file() else {}
    if not given.page:
        if find_spec("cosmic_ray") is None:
            raise SegmenterError("expected Cosmic Ray, which changes the code; `make mutants` installs it")
        results = _run(given, {result["key"]: result for result in results.get("mutants", ())})
    if not results:
        raise SegmenterError(f"{given.results}: expected results; run this without --page")
    renew(PAGE, MARK, page_lines(results))
    died = sum(result["verdict"] == KILLED for result in results["mutants"])
    print(f"{died} of {len(results['mutants'])} killed; {PAGE} lists the others")
    return int(died < given.least * len(results["mutants"]))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sample", type=int, default=200, metavar="N", help="mutants (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="another draws other mutants")
    parser.add_argument("--packages", nargs="+", default=list(PACKAGES), choices=list(PACKAGES))
    parser.add_argument("--again", action="store_true", help="test those that survived once more")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants tested side by side")
    parser.add_argument("--least", type=float, default=0.9, help="share to be killed, else exit code 1")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--page", action="store_true", help="write the page's table alone")
    return parser.parse_args(arguments)


def _run(given: argparse.Namespace, old: Mapping[str, Result]) -> dict[str, Any]:
    """Test what has no result yet, and keep each result at once."""
    sample = drawn(given.packages, given.sample, given.seed)
    found = {mutant.key: known for mutant in sample if (known := _known(mutant, old, again=given.again))}
    pending = [mutant for mutant in sample if mutant.key not in found]
    print(f"{len(sample)} mutants, {len(found)} of them done", flush=True)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(given.jobs):
            trees.put(_copy_of_the_tree(Path(folder, str(job), "tree")))
        try:
            for mutant, result in zip(
                pending, pool.map(lambda mutant: _judged(mutant, trees), pending), strict=True
            ):
                why = old.get(mutant.key, {}).get("why", "")
                found[mutant.key] = {**result, "why": why} if result["verdict"] == SURVIVED else result
                done = [found[one.key] for one in sample if one.key in found]
                results = {"seed": given.seed, "sample": len(sample), "mutants": done}
                write_whole(given.results, (json.dumps(results, indent=1) + "\n").encode())
                print(
                    f"{len(done)}: {result['verdict']}: {mutant.path}:{mutant.line}: {mutant.now}", flush=True
                )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results or {"seed": given.seed, "sample": len(sample), "mutants": list(found.values())}


def _known(mutant: Mutant, old: Mapping[str, Result], *, again: bool) -> Result | None:
    """The result of this very file; None if it has to be tested."""
    result = old.get(mutant.key)
    if result is None or result["source"] != mutant.source or (again and result["verdict"] == SURVIVED):
        return None
    return {**result, "line": mutant.line}


# ---------------------------------------------------------------------------------------- drawing


def drawn(packages: Iterable[str], number: int, seed: int) -> list[Mutant]:
    """As many mutants of each package, as long as it has any; of each place at most one."""
    by_package = []
    for package in packages:
        where = ROOT / "segmenter" / package
        files = sorted(where.rglob("*.py")) if where.is_dir() else [where.with_suffix(".py")]
        by_package.append(sorted(chain.from_iterable(_of_a_file(package, f, seed) for f in files)))
    places = (each for each in chain.from_iterable(zip_longest(*by_package)) if each is not None)
    return list(islice(filter(None, map(_mutant, places)), number))


class _Place(NamedTuple):
    """A place that can be changed; sorted by a hash of the seed and of what it says."""

    order: str
    text: str
    package: str
    file: Path
    line: int
    changes: list[tuple[str, int]]


def _of_a_file(package: str, file: Path, seed: int) -> Iterator[_Place]:
    code = file.read_text(encoding="utf-8")
    lines, path = code.splitlines(), str(file.relative_to(ROOT))
    seen: dict[str, int] = defaultdict(int)
    for (start, _), changes in sorted(_places(code).items()):
        text = f"{path} {lines[start[0] - 1].strip()} {start[1]}"
        seen[text] += 1
        place = f"{seed} {text} {seen[text]}"
        yield _Place(_hash(place), place, package, file, start[0], changes)


def _mutant(place: _Place) -> Mutant | None:
    """Return the first change of a place, in the order of hashes, that is Python; None if none is."""
    code = place.file.read_text(encoding="utf-8")
    for operator, number in sorted(place.changes, key=lambda change: _hash(f"{place.text} {change[0]}")):
        mutated = _changed(code, operator, number)
        if _is_python(mutated):
            was, now = _difference(code.splitlines(), mutated.splitlines())
            key, path = _hash(f"{place.text} {now}")[:12], str(place.file.relative_to(ROOT))
            return Mutant(key, place.package, path, _hash(code), operator, number, place.line, was, now)
    return None


def _changed(code: str, operator: str, number: int) -> str:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    return mutate_code(code, get_operator(operator)(), number) or "("


def _is_python(code: str) -> bool:
    with suppress(SyntaxError):
        return ast.parse(code) is not None
    return False


def _places(code: str) -> dict[tuple[Position, Position], list[tuple[str, int]]]:
    """Place → (operator, its number in the file) of each change there."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    left_out, kept = _left_out(ast.parse(code))
    nodes = [node for node in ast_nodes(get_ast(code)) if node.type not in ("name", "newline", "string")]
    places = defaultdict(list)
    for name in operator_names():
        if name.endswith(_SAME + _NOT_FOR_US):
            continue
        operator = get_operator(name)()
        for number, place in enumerate(chain.from_iterable(operator.mutation_positions(n) for n in nodes)):
            if not _inside(place[0], left_out) or _inside(place[0], kept):
                places[place].append((name, number))
    return places


def _left_out(tree: ast.AST) -> tuple[list[Span], list[Span]]:
    """Spans without mutants, and default values inside them, which have some."""
    spans, kept = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            spans.append(((node.lineno, node.col_offset), (node.body[0].lineno, node.body[0].col_offset)))
            kept += [_span(value) for value in (*node.args.defaults, *node.args.kw_defaults) if value]
        elif isinstance(node, ast.AnnAssign):
            spans.append(_span(node.annotation))
        elif isinstance(node, ast.Raise | ast.Assert) or _is_said(node) or _is_for_types(node):
            spans.append(_span(node))
    return spans, kept


def _is_said(node: ast.AST) -> bool:
    """A call that prints or warns."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "warnings.warn", "tell")


def _is_for_types(node: ast.AST) -> bool:
    """Code that only a type checker sees, and aliases of types."""
    if isinstance(node, ast.Assign):
        return bool(re.search(r"NDArray\[|\| None$", ast.unparse(node.value)))
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _span(node: Any) -> Span:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _inside(position: Position, spans: Iterable[Span]) -> bool:
    return any(start <= position < end for start, end in spans)


def _difference(before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    """The changed line, before and after; "" where there is none any more."""
    for old, new in zip(before, after, strict=False):
        if old != new:
            return old.strip(), "" if len(before) != len(after) else new.strip()
    return before[-1].strip(), ""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def tests_of(path: str, package: str) -> list[str]:
    """Files and folders of the tests, in the order in which they are run."""
    module = Path(path).with_suffix("")
    parent, name = ".".join(module.parent.parts), module.name
    imports = re.compile(rf"{parent}\.{name}\b|from {parent} import [^\n]*\b{name}\b")
    named = [p for p in ROOT.glob("tests/**/test_*.py") if imports.search(p.read_text(encoding="utf-8"))]
    own = PACKAGES[package].split()
    folder = Path("tests", *module.parts[1:-1])
    ordered = [
        *(folder.parent / f"test_{name}.py", folder / f"test_{name}.py"),
        *sorted(p.relative_to(ROOT) for p in named),
        *chain.from_iterable(sorted(Path(one).glob("test_*.py")) or [Path(one)] for one in own),
    ]
    files = [str(p) for p in dict.fromkeys(ordered) if (ROOT / p).is_file()]
    near = [file for file in files if file.startswith(tuple(own)) or Path(file).name == f"test_{name}.py"]
    return sorted(files, key=lambda file: (file not in near, "/laws/" in file))


def _copy_of_the_tree(target: Path) -> Path:
    """All files that are tracked or could be; the working tree is never changed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def _judged(mutant: Mutant, trees: SimpleQueue[Path]) -> Result:
    tree = trees.get()
    try:
        tests = tests_of(mutant.path, mutant.package)
        file = tree / mutant.path
        code = file.read_text(encoding="utf-8")
        try:
            _write(file, _changed(code, mutant.operator, mutant.number))
            passed, said, seconds = _pytest(tree, tests)
        finally:
            _write(file, code)
        result = {**mutant._asdict(), "verdict": SURVIVED if passed else KILLED, "seconds": round(seconds)}
        if not passed:
            failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
            result["by"] = killer = failed[1] if failed else tests[0]
            if not _pytest(tree, [killer])[0]:
                raise SegmenterError(f"{killer}: expected a test that passes without the change")
        return result
    finally:
        trees.put(tree)


def _write(file: Path, code: str) -> None:
    """Write without bytecode of what was there: two changes of one second have the same time."""
    file.write_text(code, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def _pytest(tree: Path, tests: Sequence[str]) -> tuple[bool, str, float]:
    """(all passed, what it said, seconds of processor); what it started ends with it."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", "-o", f"timeout={LIMIT}"]
    command = [sys.executable, "-m", "pytest", *options, f"--basetemp={tree.parent / 'tmp'}", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "1000"}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=output, start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY)),
        )  # fmt: skip
        try:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=False, capture_output=True)
        output.seek(0)
        return process.returncode == 0, output.read(), used.ru_utime + used.ru_stime


def page_lines(results: Mapping[str, Any]) -> list[str]:
    """The shares by package, and those that survived."""
    mutants: list[Result] = results["mutants"]
    minutes = sum(result["seconds"] for result in mutants) / 60
    rows = []
    for package in [*PACKAGES, "all"]:
        chosen = [one for one in mutants if package in (one["package"], "all")]
        died = sum(one["verdict"] == KILLED for one in chosen)
        if chosen:
            rows.append([package, str(len(chosen)), str(died), f"{100 * died / len(chosen):.0f} %"])
    lines = [
        "",
        f"Seed {results['seed']}, {len(mutants)} of {results['sample']} mutants, "
        f"{minutes:.0f} minutes of processor:",
        "",
        *table(["package", "mutants", "killed", "share"], rows),
    ]
    left = sorted((one for one in mutants if one["verdict"] == SURVIVED), key=itemgetter("path", "line"))
    if left:
        where = [f"`{one['path'].removeprefix('segmenter/')}:{one['line']}`" for one in left]
        rows = [
            [w, _code(one["was"]), _code(one["now"]), one["why"]] for w, one in zip(where, left, strict=True)
        ]
        lines += ["", *table(["survives", "line", "changed to", "why"], rows, words=4)]
    return [*lines, ""]


def _code(line: str) -> str:
    escaped = line.replace("|", "\\|").replace("`", "'")
    return f"`{escaped}`" if line else "(left out)"


if __name__ == "__main__":
    sys.exit(run_script(main))
