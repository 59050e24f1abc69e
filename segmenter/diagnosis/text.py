"""Short text of a diagnosis for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from segmenter.base.errors import plain
from segmenter.base.terminal import columns, fit_table
from segmenter.diagnosis.data import Diagnosis, GsdFacts, Limit, PlanFacts
from segmenter.runs.log import LoggedCoverage

_WIDTH = 100


def table(diagnosis: Diagnosis, *, everything: bool = True) -> str:
    """Return a diagnosis as compact text: classes, forecast, plan against shuffle, limits, run.

    Args:
        everything: also print classes, scales, other sampling methods, and remedies for the limit.
    """
    parts = [_head(diagnosis)]
    if everything:
        parts.append(_classes(diagnosis))
    if everything and diagnosis.scales is not None:
        parts.append(_scales(diagnosis, diagnosis.scales))
    parts += [_forecast(diagnosis), _plans(diagnosis)]
    if everything and diagnosis.samplings:
        parts.append(_samplings(diagnosis))
    if everything and diagnosis.quotas:
        parts.append(_quotas(diagnosis))
    parts.append(_limit(diagnosis.limit) if everything else _why(diagnosis.limit))
    if diagnosis.run is not None:
        parts.append(_run_text(diagnosis, diagnosis.run))
    return "\n\n".join(parts)


def _head(diagnosis: Diagnosis) -> str:
    left_out = f", {diagnosis.left_out} left out (min_labelled)" if diagnosis.left_out else ""
    overlap = f" with {diagnosis.overlap_px} px overlap" if diagnosis.overlap_px else ""
    return _wrap_line(
        f"{plain(diagnosis.dataset)}, {diagnosis.split}: {diagnosis.scenes} scenes, "
        f"{diagnosis.tiles} tiles of {diagnosis.tile_px} px{overlap}{left_out}; a tile holds a class "
        f"from {diagnosis.min_pixels} pixels on"
    )


def _classes(diagnosis: Diagnosis) -> str:
    tiles = diagnosis.tiles
    rows = [
        [
            plain(c.name),
            str(c.tiles),
            _percent(c.tiles / tiles, 2),
            str(c.pixels),
            _percent(c.share, 3),
            str(c.scenes),
        ]
        for c in diagnosis.classes
    ]
    head = ["class", "held by tiles", "of all", "pixels", "of all", "scenes"]
    counts = [(i, n) for i, n in enumerate(diagnosis.tiles_by_classes) if n]
    spread = ", ".join(f"{i}: {_percent(n / tiles, 1)}" for i, n in counts)
    return _grid(head, rows) + "\n" + _wrap_line(f"classes in a tile: {spread}")


def _scales(diagnosis: Diagnosis, scales: GsdFacts) -> str:
    """Return text on the tiles that hold each class in each stratum, with their share."""
    totals = [["scenes", *map(str, scales.scenes)], ["tiles", *map(str, scales.tiles)]]
    rows = [
        [plain(c.name)]
        + [
            f"{held[c.id]} ({_percent(held[c.id] / max(1, tiles), 1)})"
            for held, tiles in zip(scales.held, scales.tiles, strict=True)
        ]
        for c in diagnosis.classes
    ]
    title = "tiles that hold a class, by metres a pixel of their scenes"
    title += "; the plan holds each at each:" if scales.planned else ":"
    random = ", ".join(f"{_percent(one.probability, 1)} of {one.batch}" for one in scales.random)
    note = f"random batches that hold each class at each scale ({scales.columns} in all): {random} tiles"
    return f"{title}\n{_grid(['', *scales.strata], [*totals, *rows])}\n{_wrap_line(note)}"


def _forecast(diagnosis: Diagnosis) -> str:
    forecast = diagnosis.forecast
    exact = forecast.method == "exact"
    rows = [
        [
            str(one.batch),
            _percent(one.probability, 2) + ("" if exact else f" ± {one.error:.2%}"),
            f"{one.expected_classes:.2f}",
        ]
        for one in forecast.batches
    ]
    title = f"a random batch, {'exactly' if exact else 'simulated'}, of the {len(forecast.classes)} classes"
    needed = ", ".join(f"{size} tiles for {share} %" for share, size in forecast.needed.items())
    head = ["batch", "holds all", "holds on average"]
    return f"{title}:\n{_grid(head, rows)}\nto hold all: {needed}"


def _plans(diagnosis: Diagnosis) -> str:
    made = [p for p in diagnosis.plans if not p.refused]
    lines = ["an epoch of the plan, and in brackets of a shuffle:"]
    if made:
        c = diagnosis.limit.class_id
        head = ["batch", "steps", "repeats", "at least", "fillers", "steps with all", "classes a step"]
        head += [f"on 1 of {made[0].replicas} devices"]
        head += [] if c is None else [f"longest wait for {_names(diagnosis, [c])}"]
        lines.append(_grid(head, [_plan_row(p, c) for p in made]))
    for one in diagnosis.plans:
        if one.refused:
            lines.append(_wrap_line(f"batch {one.batch}: {plain(one.refused)}"))
        elif one.best_effort:
            names = _names(diagnosis, one.best_effort)
            lines.append(_wrap_line(f"batch {one.batch}: not promised, best effort: {names}"))
        if one.rare_at_scale:
            names = ", ".join(map(plain, one.rare_at_scale))
            lines.append(_wrap_line(f"batch {one.batch}: best effort at their scale: {names}"))
    return "\n".join(lines)


def _plan_row(one: PlanFacts, limiting: int | None) -> list[str]:
    plan, shuffle = one.planned, one.shuffle
    row = [str(n) for n in (one.batch, one.steps, one.coverage_repeats, one.repeats_bound, one.fillers)]
    row.append(f"{_percent(plan.complete_steps, 1)} ({_percent(shuffle.complete_steps, 1)})")
    row.append(f"{plan.classes_per_step:.2f} ({shuffle.classes_per_step:.2f})")
    row.append(f"{plan.classes_per_replica:.2f} ({shuffle.classes_per_replica:.2f})")
    if limiting is not None:
        waits = [side.longest_gap[limiting] for side in (plan, shuffle)]
        waited = "{} ({}) steps".format(*(wait or "–" for wait in waits))
        row.append(waited if any(waits) else "never seen")
    return row


def _samplings(diagnosis: Diagnosis) -> str:
    c = diagnosis.limit.class_id
    head = ["sampling.method", "batch", "steps", "with all"]
    head += [] if c is None else [f"with {_names(diagnosis, [c])}"]
    rows, lines = [], ["an epoch by each method of sampling:"]
    for one in diagnosis.samplings:
        row = [one.method, str(one.batch), str(one.steps), _percent(one.complete_steps, 1)]
        row += [] if one.limiting_steps is None else [_percent(one.limiting_steps, 1)]
        row += [_percent(one.tiles_seen, 1), str(one.most_uses)]
        if one.refused is None:
            rows.append(row)
        elif one.method != "plan":  # said above
            lines.append(_wrap_line(f"batch {one.batch}, {one.method}: {plain(one.refused)}"))
    if rows:
        lines.insert(1, _grid([*head, "tiles drawn", "one at most"], rows))
    return "\n".join(lines)


def _quotas(diagnosis: Diagnosis) -> str:
    title = f"tiles of each class in a step of {diagnosis.global_batch}, and in brackets uses of its tiles:"
    return f"{title}\n{_grid(quota_header(diagnosis), quota_rows(diagnosis))}"


def quota_header(diagnosis: Diagnosis) -> list[str]:
    """Return the header of a table of quotas: one tile of each class, then the lifts."""
    return ["class", *("presence" if q.lift is None else f"lift {q.lift:g}" for q in diagnosis.quotas)]


def quota_rows(diagnosis: Diagnosis) -> list[list[str]]:
    """Return the rows of a table of quotas: steps, repeats, and each class, the rarest first."""
    quotas = diagnosis.quotas
    rows = [["steps", *(f"{q.steps:,}" for q in quotas)], ["repeats", *(f"{q.repeats:,}" for q in quotas)]]
    for c in diagnosis.rarest_first:
        cells = [f"{q.tiles[c]:.1f} ({q.uses[c] or 0:.1f})" if q.tiles[c] else "best effort" for q in quotas]
        rows.append([_names(diagnosis, [c]), *cells])
    return rows


def _limit(limit: Limit) -> str:
    levers = [_wrap_line(f"- {plain(lever.text)}", indent="  ") for lever in limit.levers]
    return "\n".join([_why(limit), *levers])


def _why(limit: Limit) -> str:
    return _wrap_line(plain(f"what limits: {limit.why}"))


def _run_text(diagnosis: Diagnosis, run: LoggedCoverage) -> str:
    text = (
        f"run {plain(run.path)}: {run.steps} steps, {run.short_steps} short of a promised class; "
        f"of {run.tiles_drawn} tiles {run.redrawn:.2%} drawn again, {run.replaced:.2%} replaced"
    )
    rows = []
    for c in diagnosis.classes:
        promise = "yes" if c.id in run.promised else "best effort" if c.id in run.best_effort else "-"
        rows.append([plain(c.name), promise, _percent(run.held_share[c.id], 2)])
    return _wrap_line(text) + "\n" + _grid(["class", "promised", "in steps"], rows)


# ------------------------------------------------------------------------------------------ layout


def _percent(share: float, digits: int) -> str:
    """Return a share as a percentage; 100 or 0 only if it is exactly that."""
    text, least = f"{share:.{digits}%}", 10.0**-digits
    if 0 < share < 1 and float(text[:-1]) in (0, 100):
        return f"<{least:.{digits}f}%" if share < 0.5 else f">{100 - least:.{digits}f}%"
    return text


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    room = columns()
    return "\n".join(f"  {line}" for line in fit_table(head, rows, room=room and room - 2))


def _wrap_line(text: str, indent: str = "") -> str:
    following = indent + "  "
    width = min(_WIDTH, columns() or _WIDTH)
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=following, break_long_words=False
    )


def _names(diagnosis: Diagnosis, ids: Sequence[int]) -> str:
    return ", ".join(plain(diagnosis.classes[c].name) for c in ids)
