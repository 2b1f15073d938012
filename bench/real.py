"""`python -m bench models DIR [--manifest FILE] [--inputs DIR] [--only IDS] [--threads N …] [--profile] [--memory]`: real models.

Every ONNX file of a folder runs through tileflow, ONNX Runtime and OpenVINO: outputs are compared first, then times, in turns, medians of
several. Models that do not run, or not rightly, are listed with the reason. `--profile` prints where the time goes, ours beside ONNX Runtime's;
`--memory` the most memory that a process takes to load the model and run it, ours beside each peer's.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .kinds.model import Model
from .pairs import alternate
from .report import Result, duration, to_json
from .side import Missing, Side
from .verdict import geometric_mean

PEERS = ("onnxruntime", "openvino")
HEAD = f"{'model':<24} {'th':>2} {'ours':>8} " + " ".join(f"{p:>12} {'ratio':>6}" for p in PEERS) + "  errors"
MOST_ROWS, SHOWN = 12, 110
"""Rows of a profile that are shown for each side, and characters of their names."""
FAMILIES = ("Conv", "LSTM", "GRU", "MatMul", "Gemm", "Attention", "Softmax", "Norm", "Pool", "Resize", "Reduce", "Arg", "Reorder", "Transpose",
            "Concat", "Split", "Slice", "Gather", "Pad", "Cast", "copy")
"""Kinds of operators that a profile adds up, the first that the name holds; everything else is elementwise."""


def files(folder: Path, manifest: Path | None, only: str) -> list[Path]:
    """The files to run, by name, or in the order of a manifest: a JSON list of objects with an "id". `only`: parts of names, separated by commas.

    Raises:
        SystemExit: there is none.
    """
    paths = sorted(folder.glob("*.onnx"))
    if manifest is not None:
        paths = [folder / f"{model['id']}.onnx" for model in json.loads(manifest.read_text())]
    paths = [p for p in paths if any(part in p.stem for part in only.split(","))]
    if not paths:
        raise SystemExit(f"There is no .onnx file{f' with {only} in its name' if only else ''} in {folder}; give a folder of models.")
    return paths


def sides(threads: int, against: Iterable[str], path: str | None) -> list[Side]:
    """Our side and the peers that are installed."""
    found = [Side("ours", threads, path)]
    for peer in against:
        try:
            found.append(Side(peer, threads))
        except Missing as missing:
            print(f"{missing}. It is left out.", file=sys.stderr)
    return found


def ready(side: Side, model: Model) -> str:
    """Make a side ready to be timed: why it cannot be, or ""."""
    try:
        answer = side.ask(do="prepare", kind="model", shape=model.shape)
        if "unsupported" in answer:
            return str(answer["unsupported"])
        error = side.ask(do="error")["error"]
    except RuntimeError as failure:                              # a model that refuses inputs that are drawn: --inputs gives it real ones
        return str(failure)
    return "" if error is None or error <= model.equal else f"its outputs are {error:.1e} away from ONNX Runtime's without optimisations"


def measure(model: Model, every: Sequence[Side], runs: int) -> Iterator[Result]:
    """A result for each peer, or one without a time that says why there is none."""
    ours, threads = every[0], every[0].threads
    why = {side.name: ready(side, model) for side in every}
    taking = [side for side in every if not why[side.name]]
    times = {side.name: found for side, found in zip(taking, alternate(taking, runs), strict=True)} if not why["ours"] else {}
    medians = {name: statistics.median(found) for name, found in times.items()}
    mine = medians.get("ours")
    for peer in every[1:] or [ours]:
        found = Result("models", peer.name, threads, str(ours.facts["path"]), mine, None, None, shape=model.name, note=why["ours"] or why[peer.name])
        if mine is not None:
            found.error_ours = ours.ask(do="error")["error"]
        if mine is not None and peer is not ours and peer.name in medians:
            found.peer_s, found.error_peer = medians[peer.name], peer.ask(do="error")["error"]
            found.ratio = medians[peer.name] / mine
        yield found


def footprint(model: Model, name: str, threads: int, path: str | None) -> int:
    """Bytes resident at the peak of a process of its own that loads the model and runs it a few times: interpreter, libraries and code included.

    Our kernels come from the cache, where an earlier process left them. Raises RuntimeError where the model does not run.
    """
    side = Side(name, threads, path)
    try:
        answer = side.ask(do="prepare", kind="model", shape=model.shape)
        if "unsupported" in answer:
            raise RuntimeError(answer["unsupported"])
        side.ask(do="time", times=5)
        return int(side.ask(do="memory")["bytes"])
    finally:
        side.close()


def weigh(model: Model, every: Sequence[Side], found: Sequence[Result], path: str | None) -> str:
    """Put the peaks of both sides into the results that have times; a line of them."""
    if found[0].ours_s is None:
        return ""
    ours = footprint(model, "ours", every[0].threads, path)
    cells = [f"    memory: ours {ours / 1e6:.0f} MB"]
    for result in found:
        if result.peer_s is not None:
            peer = footprint(model, result.peer, result.threads, None)
            result.extra.update(peak_ours=ours, peak_peer=peer)
            cells.append(f"{result.peer} {peer / 1e6:.0f} MB ({ours / peer:.2f})")
    return ", ".join(cells)


def line(results: Sequence[Result]) -> str:
    """A model in a line."""
    by_peer = {r.peer: r for r in results}
    first = results[0]
    if first.ours_s is None:
        return f"{first.shape:<24} {first.threads:>2} does not run: {first.note[:SHOWN]}"
    cells = [f"{duration(r.peer_s if r else None):>12} {f'{r.ratio:.2f}' if r and r.ratio else '-':>6}" for r in map(by_peer.get, PEERS)]
    errors = " ".join("-" if e is None else f"{e:.0e}" for e in [first.error_ours, *(r.error_peer for r in results if r.peer in PEERS)])
    notes = "; ".join(f"{r.peer}: {r.note}" for r in results if r.note)
    return f"{first.shape:<24} {first.threads:>2} {duration(first.ours_s):>8} {' '.join(cells)}  {errors}  {notes}".rstrip()


def summary(results: Sequence[Result]) -> str:
    """Geometric means and the worst model, for each peer and number of threads."""
    groups: dict[tuple[str, int], list[Result]] = defaultdict(list)
    for r in results:
        if r.ratio is not None:
            groups[r.peer, r.threads].append(r)
    lines = []
    for (peer, threads), found in groups.items():
        worst = min(found, key=lambda r: r.ratio or 0.0)
        lines.append(f"{geometric_mean(r.ratio for r in found if r.ratio):.2f} times the speed of {peer} on {len(found)} models with {threads} "
                     f"threads; the worst is {worst.shape} with {worst.ratio:.2f}")
        if weighed := [r for r in found if r.extra.get("peak_peer")]:
            shares = {r.shape: r.extra["peak_ours"] / r.extra["peak_peer"] for r in weighed}
            most = max(shares, key=lambda shape: shares[shape])
            lines.append(f"{geometric_mean(shares.values()):.2f} times its memory; the most is {most} with {shares[most]:.2f}")
    return "\n".join(lines)


# ---- where the time goes --------------------------------------------------------------------------------------------------------

def family(operator: str) -> str:
    """What a profile counts an operator under."""
    return next((f for f in FAMILIES if f.lower() in operator.lower()), "elementwise")


def profile_text(profiles: Mapping[str, Sequence[tuple[str, str, float]]]) -> str:
    """By kind of operator the times of all sides; then the longest rows of each."""
    totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for side, rows in profiles.items():
        for operator, _, seconds in rows:
            totals[family(operator)][side] += seconds
            totals["all"][side] += seconds
    lines = [f"    {'':<14}" + "".join(f"{side:>14}" for side in profiles)]
    for kind, by_side in sorted(totals.items(), key=lambda item: -max(item[1].values())):
        lines.append(f"    {kind:<14}" + "".join(f"{duration(by_side.get(side)):>14}" for side in profiles))
    for side, rows in profiles.items():
        lines.append(f"    {side}, {len(rows)} rows, the longest:")
        longest = sorted(rows, key=lambda row: -row[2])[:MOST_ROWS]
        lines += [f"    {duration(seconds):>8} {operator:<20} {name[:SHOWN]}" for operator, name, seconds in longest]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Measure the models of a folder."""
    parser = argparse.ArgumentParser(prog="python -m bench models", description="Real models: tileflow against ONNX Runtime and OpenVINO.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of .onnx files")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="run the ids that this JSON list names, in its order, instead of all files")
    parser.add_argument("--inputs", type=Path, metavar="DIR", help="folder of ID.npz with arrays in0, in1, …; by default beside the models")
    parser.add_argument("--only", default="", metavar="IDS", help="only models with one of these in their name, separated by commas")
    parser.add_argument("--threads", type=int, nargs="+", help="worker threads of all sides (default: 1 and 2)")
    parser.add_argument("--runs", type=int, default=9, help="measured turns per side; medians are compared")
    parser.add_argument("--against", default=",".join(PEERS), help="peers, separated by commas; none: measure our side alone")
    parser.add_argument("--path", help="force a CPU path of our side, for example avx2")
    parser.add_argument("--profile", action="store_true", help="print where the time goes, per operator, ours beside ONNX Runtime's")
    parser.add_argument("--memory", action="store_true", help="print the peak memory of processes that load a model and run it")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    chosen = parser.parse_args(arguments)
    shared: dict[str, Any] = {"arrays": str(chosen.inputs.resolve())} if chosen.inputs else {}
    models = [Model({"file": str(p.resolve()), **shared}) for p in files(chosen.folder, chosen.manifest, chosen.only)]
    out, results = sys.stderr if chosen.json else sys.stdout, []
    print(HEAD, file=out)
    for threads in chosen.threads or [n for n in (1, 2) if n <= (os.cpu_count() or 1)]:
        every = sides(threads, [p for p in PEERS if p in chosen.against.split(",")], chosen.path)
        try:
            for model in models:
                found = list(measure(model, every, chosen.runs))
                results += found
                print(line(found), file=out, flush=True)
                if chosen.memory:
                    print(weigh(model, every, found, chosen.path), file=out, flush=True)
                if chosen.profile and found[0].ours_s is not None:
                    asked = [side for side in every if side.name in ("ours", "onnxruntime")]
                    print(profile_text({side.name: side.ask(do="ask", what="profile")["answer"] for side in asked}), file=out, flush=True)
        finally:
            for side in every:
                side.close()
    print(to_json(results) if chosen.json else summary(results))
