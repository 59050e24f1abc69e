"""Page of runs while they train: the report of one, or several side by side, anew as their files change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from segmenter.base.errors import SegmenterError, counted
from segmenter.base.files import FileLock, file_state, shortest_ends
from segmenter.base.invocation import invocation
from segmenter.base.sealed import digest
from segmenter.extras.view.server import Answer, Asked, Routes
from segmenter.pages.page import html_page, own_file
from segmenter.pages.parts import Head
from segmenter.runs.compare import duration
from segmenter.runs.report.beside import beside_sections
from segmenter.runs.report.run_record import Story, read_story
from segmenter.runs.report.sections import REPORT, headline, report_head, report_sections

_WEB = Path(__file__).parent / "web"
_HTML, _JS = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
_LOCK = ".lock"


class WatchedRun:
    """A run directory that a training may be writing.

    Args:
        clock: returns the time in seconds, as files have it.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._read: tuple[str, Story] | None = None
        self._seen: list[tuple[float, int]] = []

    @property
    def stamp(self) -> str:
        """Digest of the states of its files, which changes when a training goes on."""
        return digest([file_state(file) for file in self._files()], 24)

    def _files(self) -> list[Path]:
        names = (REPORT, _LOCK)
        try:
            return sorted(file for file in self.path.iterdir() if file.name not in names)
        except OSError as error:
            raise SegmenterError(self.path, f"cannot be read: {error.strerror}") from None

    @property
    def story(self) -> Story:
        """Records of the run; of files that did not change as they were read before.

        Raises:
            SegmenterError: it is no run, or damaged.
        """
        stamp = self.stamp
        if self._read is None or self._read[0] != stamp:
            self._read = stamp, read_story(self.path)
        return self._read[1]

    @property
    def is_training(self) -> bool:
        """True while a training holds the directory."""
        lock = FileLock(self.path / _LOCK, shared=True, keeps_file=True)
        try:
            lock.take()
        except BlockingIOError:
            return True
        except OSError:
            return False
        lock.release()
        return False

    def state(self) -> str:
        """Return how far it is, as a sentence: with the time left, or since when it stands."""
        story = self.story
        came = story.status
        if self.is_training:
            epoch = max([1, *(each.epoch for each in story.lines)])
            epochs = story.run.recipe.training.epochs
            return f"Training: epoch {epoch} of {epochs}, step {story.steps:,}{self._time_left(story)}"
        self._seen = []
        if not came.startswith("stands "):
            return came[0].upper() + came[1:]
        changed = max((file.stat().st_mtime for file in self._files()), default=self._clock())
        since = duration(max(0.0, self._clock() - changed))
        return f"Stands since {since}, {came.removeprefix('stands ')}"

    def _time_left(self, story: Story) -> str:
        """Return the time that a running training still takes, behind a comma.

        By what was seen of an epoch or more, with its validations; before, by the speed of the steps alone.
        """
        done, per_epoch, training = story.steps, _steps_of_epoch(story), story.run.recipe.training
        if not self._seen or self._seen[-1][1] != done:
            self._seen.append((self._clock(), done))
        steps = per_epoch * training.epochs - done
        rate = story.lines[-1].rate if story.lines else None
        if not per_epoch or not rate:
            return ", the time left is known after the first epoch"
        if steps <= 0:
            return ", at its end"
        (first, before), (last, _) = self._seen[0], self._seen[-1]
        if done - before >= per_epoch:
            return f", about {duration(steps * (last - first) / (done - before))} left"
        seconds = steps * training.global_batch / rate
        return f", about {duration(seconds)} left for {counted(steps, 'step')}, and the time of validations"


def _steps_of_epoch(story: Story) -> int:
    """Return the steps of an epoch; 0 before the first one has ended."""
    ends = [each.step / each.epoch for each in story.validations if each.epoch]
    if story.lines and (last := story.lines[-1].epoch) > 1:
        ends += [each.step / (last - 1) for each in story.lines if each.epoch == last - 1][-1:]
    return round(ends[-1]) if ends else 0


class RunPages:
    """Answers about a page of runs."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read the runs once.

        Raises:
            SegmenterError: a path is no run.
        """
        self._runs = [WatchedRun(path) for path in paths]
        self._names = [str(name) for name in shortest_ends(paths)]
        self._page(0 if len(paths) == 1 else None)

    @property
    def routes(self) -> Routes:
        """Routes by method and first word."""
        scripts = {
            **{name: Answer(own_file(name).encode(), _JS) for name in ("charts.js", "page.js")},
            "runs.js": Answer((_WEB / "runs.js").read_bytes(), _JS),
        }
        return {
            **{f"GET {name}": lambda asked: scripts[asked.words[0]] for name in scripts},
            "GET ": self.page,
            "GET now": self.now,
            "GET alive": lambda _: Answer.of({}),
        }

    def _wanted_run(self, asked: Asked) -> int | None:
        """Return the number of the run that a page is of; None: of all of several."""
        text = asked.query.get("run", "" if len(self._runs) > 1 else "0")
        if not text:
            return None
        if not text.isdecimal() or int(text) >= len(self._runs):
            raise SegmenterError("the page", "there is no such run")
        return int(text)

    def page(self, asked: Asked) -> Answer:
        """Return the page as it is now."""
        return Answer(self._page(self._wanted_run(asked)).encode(), _HTML)

    def now(self, asked: Asked) -> Answer:
        """Return a digest of the files, and how far the run is."""
        number = self._wanted_run(asked)
        lead = self._lead() if number is None else self._state(self._runs[number])
        return Answer.of({"stamp": self._stamp(number), "lead": lead})

    def _stamp(self, number: int | None) -> str:
        if number is not None:
            return self._runs[number].stamp
        return digest([(each.stamp, each.state()) for each in self._runs], 24)

    def _lead(self) -> str:
        training = sum(each.is_training for each in self._runs)
        return f"{counted(len(self._runs), 'run')}, {training} training now"

    def _state(self, run: WatchedRun) -> str:
        state = run.state()
        return headline(run.story)[1] if not state.startswith(("Training", "Stands")) else f"{state}."

    def _page(self, number: int | None) -> str:
        scripts = ("charts.js", "page.js", f"runs.js?stamp={self._stamp(number)}")
        if number is not None:
            run = self._runs[number]
            figure, _ = headline(run.story)
            head = report_head(run.story, self._state(run), figure)
            return html_page(head, report_sections(run.story, by_epoch=True), scripts=scripts)
        stories = [each.story for each in self._runs]
        facts = {name: f"?run={number}" for number, name in enumerate(self._names)}
        head = Head("Runs side by side", self._lead(), facts, invocation("view"))
        states = [each.state() for each in self._runs]
        return html_page(head, beside_sections(stories, self._names, states), scripts=scripts)
