"""The fuzzer finds whatever can go wrong, and a short part of it finds nothing here."""

import re
from itertools import product
from pathlib import Path

import pytest

from fuzz import targets
from fuzz.__main__ import main
from fuzz.campaign import Campaign, kept
from fuzz.mutations import mutant
from fuzz.own_time import own_seconds
from fuzz.worker import Case
from tests.helpers import fuzz_table

CASES = 4
"""Of each target; `make fuzz` has thousands."""


@pytest.fixture(autouse=True)
def found_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """A few cases of every target of the project."""
    campaign = Campaign("fuzz.targets", tmp_path_factory.mktemp("found"), seconds=60)
    names = list(targets.TARGETS)
    campaign.run((Case(name, number) for number, name in product(range(CASES), names)), workers=1)
    assert sum(campaign.counts.values()) == CASES * len(names)
    return campaign


@pytest.mark.parametrize("name", targets.TARGETS)
def test_a_changed_file_is_refused_in_one_line_or_accepted(campaign: Campaign, name: str) -> None:
    assert [key for key in campaign.findings if key[0] == name] == []
    assert sum(n for (target, _), n in campaign.counts.items() if target == name) == CASES


EXPECTED = {
    "refused": "refused",
    "long": "long line: 3000 characters",
    "printed": "raw text: a line with control characters",
    "raises": "raised: KeyError fuzz_table.py:_raise",
    "sleeps": "hangs: no end",
    "loops": "hangs: no end",
    "crashes": "died: SIGSEGV",
    "ends": "died: exit code 0",
    "memory": "memory: memory",
    "accepts": "other",
    "should-tell": "other content",
}


def test_whatever_goes_wrong_is_found_kept_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(EXPECTED) == set(fuzz_table.TARGETS)
    options = ["--table", "tests.helpers.fuzz_table", "--seconds", "1", "--found", str(tmp_path)]
    assert main([*options, "--cases", "1", "--workers", "1"]) == 1
    shown = capsys.readouterr().out
    for name, said in EXPECTED.items():
        if said in ("refused", "other"):
            assert re.search(rf"^{name} +1 .* 0$", shown, re.MULTILINE), shown
        else:
            assert f"{name}: {said}" in shown
            assert f"python -m fuzz --replay {tmp_path}/{name}-0\n" in shown
            case = kept(tmp_path / f"{name}-0")
            assert Path(case.content or "").read_bytes() == mutant(b"whole", [b"whole"], (), 0)
    assert main([*options, "--replay", str(tmp_path / "raises-0")]) == 1
    assert "KeyError: 'outputs'" in capsys.readouterr().out


def test_cases_are_the_same_each_time_and_change_something() -> None:
    seed, other = bytes(range(256)) * 3, b"other" * 50
    found = [mutant(seed, [seed, other], [b"token"], number) for number in range(300)]
    assert found == [mutant(seed, [seed, other], [b"token"], number) for number in range(300)]
    assert sum(content != seed for content in found) > 280
    assert len(set(found)) > 270
    lengths = [len(content) for content in found]
    assert min(lengths) < len(seed) < max(lengths)
    text = b'{"a": 1, "b": [2.5, true], "c": "x"}\n'
    assert any(b"NaN" in mutant(text, [text], (), number) for number in range(200))


def test_waiting_for_a_processor_is_not_a_tests_own_time() -> None:
    assert own_seconds(1, ran=0, waited=0) == 1  # asleep: a deadlock ends
    assert own_seconds(1, ran=1, waited=0) == 1  # a loop on a free core ends
    assert own_seconds(1, ran=0.1, waited=0.9) == pytest.approx(0.1)  # nine others on the core
    assert own_seconds(1, ran=2, waited=6) == pytest.approx(0.25)  # eight threads on two cores
    assert own_seconds(3600, ran=0, waited=0) < 10  # the machine itself slept
