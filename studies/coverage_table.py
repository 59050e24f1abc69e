"""Tables of `coverage_help`: the variance of gradients, and the scores of all trainings. Pure NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Noise = dict[str, float]
"""`trace` of a gradient's covariance and `mean_squared`, the squared length of its mean."""
Result = Mapping[str, Any]
MODES = ("off", "relaxed")
STAGES = ("third", "end")
"""After which share of the steps weights were kept."""
SCORES = ("rare_IoU", "mIoU")
SHARES = ("complete_steps", "steps_with_rare", "tiles_with_rare")


def gradient_noise(gradients_MP: NDArray[Any]) -> Noise:
    """How far the gradients of M batches (M ≥ 2) at the same weights scatter, without bias for any M.

    trace = Σ |g_i − ḡ|² / (M − 1). The squared length of ḡ itself is too large by the noise that is left
    in it: |ḡ|² − trace / M is the estimate, as for the gradient noise scale (McCandlish et al. 2018,
    arXiv:1812.06162, appendix A.1). It may come out below 0 where the mean is small.
    """
    gradients = gradients_MP.astype(np.float64)
    mean_P = gradients.mean(axis=0)
    trace = float(np.square(gradients - mean_P).sum() / (len(gradients) - 1))
    squared = float(np.square(mean_P).sum()) - trace / len(gradients)
    return {"trace": trace, "mean_squared": squared}


def relative_noise(noises: Iterable[Noise]) -> float:
    """Median over several weights of trace / squared length; infinite where the mean drowns in the noise.

    The median, since one batch that is far out decides a mean.
    """
    ratios = [
        noise["trace"] / noise["mean_squared"] if noise["mean_squared"] > 0 else np.inf for noise in noises
    ]
    return float(np.median(ratios))


def noise_lines(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One line for each batch and stage: both samplings at the same weights, those of all trainings."""
    lines = []
    for batch in _in_order(results, "batch"):
        for stage in STAGES:
            found = [result["gradients"] for result in results if result["batch"] == batch]
            line: dict[str, Any] = {"benchmark": "coverage_help", "batch": batch, "weights_after": stage}
            for part in ("all", "rare"):
                for mode in MODES:
                    noise = relative_noise(gradients[f"{stage}/{mode}"][part] for gradients in found)
                    line[f"{part}_{mode}"] = round(noise, 3) if np.isfinite(noise) else None
            lines.append(line)
    return lines


def differences(results: Sequence[Result], batch: int, score: str) -> tuple[float, float]:
    """Mean over the seeds of relaxed − off, and its standard error (NaN for one seed)."""
    by_mode = {mode: _scores(results, batch, mode, score) for mode in MODES}
    gain = np.array([by_mode["relaxed"][seed] - off for seed, off in by_mode["off"].items()])
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else float("nan")
    return float(gain.mean()), float(error)


def _scores(results: Sequence[Result], batch: int, mode: str, score: str) -> dict[int, float]:
    """Seed → score."""
    chosen = [result for result in results if (result["batch"], result["mode"]) == (batch, mode)]
    return {result["seed"]: result[score] for result in chosen}


def result_table(results: Sequence[Result], rare: str) -> str:
    """The comparison for people."""
    batches = _in_order(results, "batch")
    lines = [
        _row("", "", ("", ""), ("complete", f"{rare} in", f"{rare} in")),
        _row("batch", "mode", (f"{rare} IoU (seeds)", "mIoU (seeds)"), ("steps", "steps", "tiles")),
        *(line for batch in batches for line in _rows_of(results, batch)),
        "",
        "Variance of the gradient over the squared length of its mean, both samplings at the same weights;",
        f"of all weights, and of those of the logit of {rare}; after a third of the steps, and at the end.",
        _noise_row("batch", "weights", ("all off", "relaxed", f"{rare} off", "relaxed")),
    ]
    for line in noise_lines(results):
        values = [line[f"{part}_{mode}"] for part in ("all", "rare") for mode in MODES]
        shown = ["-" if value is None else f"{value:.2f}" for value in values]
        lines.append(_noise_row(str(line["batch"]), line["weights_after"], shown))
    return "\n".join(lines)


def _rows_of(results: Sequence[Result], batch: int) -> list[str]:
    """A line for each mode, and what the plan gains, of one batch size."""
    lines = []
    for mode in MODES:
        chosen = [r for r in results if (r["batch"], r["mode"]) == (batch, mode)]
        scores = [_seeds([r[score] for r in chosen]) for score in SCORES]
        shares = [float(np.mean([r[share] for r in chosen])) for share in SHARES]
        lines.append(_row(str(batch), mode, scores, [f"{share:.1%}" for share in shares]))
    gains = ["{:+.3f} ± {:.3f}".format(*differences(results, batch, score)) for score in SCORES]
    return [*lines, _row("", "gain", [gain.replace(" ± nan", "") for gain in gains], ("", "", ""))]


def _seeds(values: Sequence[float]) -> str:
    each = " ".join(f"{value:.3f}" for value in values)
    return f"{np.mean(values):.3f} ({each})"


def _row(batch: str, mode: str, scores: Sequence[str], shares: Sequence[str]) -> str:
    cells = [f"{batch:>5} {mode:<8}", *(f"{score:<26}" for score in scores), *(f"{s:>9}" for s in shares)]
    return " ".join(cells).rstrip()


def _noise_row(batch: str, stage: str, values: Sequence[str]) -> str:
    return " ".join([f"{batch:>5} {stage:<8}", *(f"{value:>10}" for value in values)])


def _in_order(results: Sequence[Result], key: str) -> list[Any]:
    return list(dict.fromkeys(result[key] for result in results))


def rounded(value: Any) -> Any:
    """Plain data with its floats in four digits, to be printed."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
