"""Links of a chip's own: collectives against messages sent one by one over the links, any number of chips, and the
vendor's pods as they were."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import defaultdict

import numpy as np
import pytest

import tileflow
from tileflow import machine
from tileflow.system.errors import OptionError
from tileflow.tiles.hardware.chip import Chip, chip
from tileflow.tiles.hardware.fabric import Fabric
from tileflow.tiles.system.collectives import steps_of
from tileflow.tiles.system.links import collective, crossing_cycles

RING = {"topology": "ring", "bytes_per_second": 10e9, "latency_seconds": 1e-6}
SWITCH = {**RING, "topology": "switch"}
MODEL = "digits_cnn.onnx"


def linked(**links: object) -> Chip:
    return chip("gc200").variant(tiles=64, link_sync_cycles=7, links={**RING, **links})


# ---- messages, one by one


def hops(a: int, b: int, fabric: Fabric, ipus: int, chips: int, way: int) -> list[tuple[object, object]]:
    """The directed links that a message from replica a to b crosses; replicas lie `ipus` apart."""
    if fabric.topology == "switch":
        return [(a, "switch"), ("switch", b)]
    a, b = a * ipus, b * ipus
    if fabric.topology == "ring":
        total = chips * ipus
        found = []
        while a != b:
            found.append((a, (a + way) % total))
            a = (a + way) % total
        return found
    columns = fabric.columns
    found = []
    while a % columns != b % columns:  # along the row, then along the column
        step = a + (1 if b % columns > a % columns else -1)
        found.append((a, step))
        a = step
    while a != b:
        step = a + (columns if b > a else -columns)
        found.append((a, step))
        a = step
    return found


def ring_rounds(members: list[int], pieces: dict[int, np.ndarray], way: int, gather: bool):
    """Messages (from, to, piece) of each round of a ring over members, which together hold `pieces` for each."""
    n = len(members)
    for step in range(n - 1):
        yield [(members[i], members[(i + way) % n], (i - way * step + (way if gather else 0)) % n) for i in range(n)]


@pytest.mark.parametrize("replicas", [2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("ipus", [1, 3])
def test_a_ring_by_messages(replicas, ipus):
    """Reduce-scatter: all sums are right, and the busiest link of each round has the bytes that are priced; groups of
    all stages at once."""
    fabric, length = Fabric(**RING), replicas * 2 * 6
    ways = [1, -1] if replicas > 2 else [1]
    rng = np.random.default_rng(replicas)
    data = [rng.integers(0, 100, (replicas, length)) for _ in range(ipus)]
    held = [d.copy() for d in data]
    part = length // len(ways) // replicas
    rounds = steps_of("reduce-scatter", length, replicas, ipus, fabric)["ring"]
    assert len(rounds) == replicas - 1
    for step, priced in enumerate(rounds):
        load: dict[object, int] = defaultdict(int)
        sent = defaultdict(int)
        for stage in range(ipus):
            arriving = []
            for k, way in enumerate(ways):
                for i in range(replicas):
                    piece = (i - way * step) % replicas
                    at = slice(k * length // len(ways) + piece * part, k * length // len(ways) + (piece + 1) * part)
                    to = (i + way) % replicas
                    arriving.append((to, at, held[stage][i, at].copy()))
                    sent[stage, i] += part
                    for a, b in hops(i, to, fabric, ipus, replicas, way):
                        load[(a + stage) % (replicas * ipus), (b + stage) % (replicas * ipus)] += part
            for to, at, values in arriving:
                held[stage][to, at] += values
        assert max(load.values()) == priced.link
        assert set(sent.values()) == {priced.sent} == {priced.added}
    for stage in range(ipus):
        for k, way in enumerate(ways):
            for i in range(replicas):
                piece = (i + way) % replicas
                at = slice(k * length // len(ways) + piece * part, k * length // len(ways) + (piece + 1) * part)
                assert np.array_equal(held[stage][i, at], data[stage][:, at].sum(0))


@pytest.mark.parametrize("replicas", [2, 4, 8, 3, 5, 6, 7, 12])
def test_recursive_halving_by_messages(replicas):
    """Thakur, Rabenseifner and Gropp: the sums are right, and each step's largest message is the one that is priced."""
    fabric, least = Fabric(**SWITCH), 1 << (replicas.bit_length() - 1)
    length = replicas * least * 4
    rng = np.random.default_rng(replicas)
    data = rng.integers(0, 100, (replicas, length))
    priced = steps_of("reduce-scatter", length, replicas, 1, fabric)["recursive halving"]
    largest = []
    held = data.copy()
    extra = replicas - least
    if extra:  # the last ones give all they have to the first ones
        held[:extra] += held[least:]
        largest.append(length)
    low, high = np.zeros(least, int), np.full(least, length)
    distance = least // 2
    while distance:
        before, sizes = held.copy(), set()
        for i in range(least):
            partner, middle = i ^ distance, (low[i] + high[i]) // 2
            keep = slice(low[i], middle) if not i & distance else slice(middle, high[i])
            held[i, keep] += before[partner, keep]
            sizes.add(keep.stop - keep.start)
            low[i], high[i] = keep.start, keep.stop
        largest.append(max(sizes))
        distance //= 2
    if extra:
        largest.append(length // replicas)
    assert [s.link for s in priced] == largest
    for i in range(least):
        assert np.array_equal(held[i, low[i] : high[i]], data[:, low[i] : high[i]].sum(0))
    back = steps_of("all-gather", length, replicas, 1, fabric)["recursive halving"]
    assert [s.link for s in back] == largest[::-1]
    assert all(s.added == 0 for s in back)


@pytest.mark.parametrize(("columns", "replicas", "ipus"), [(4, 16, 1), (3, 6, 1), (4, 8, 2), (6, 9, 2), (2, 8, 1)])
def test_a_mesh_goes_along_rows_and_columns(columns, replicas, ipus):
    """Each phase by messages: pieces of all rows (columns) at once, on links that send both ways."""
    fabric = Fabric("mesh", 10e9, columns=columns)
    across, down = columns // ipus, replicas // (columns // ipus)
    length = replicas * 12
    priced = steps_of("reduce-scatter", length, replicas, ipus, fabric)["mesh"]
    assert len(priced) == across - 1 + down - 1
    groups = [
        [[r * across + c for c in range(across)] for r in range(down)],
        [[r * across + c for r in range(down)] for c in range(across)],
    ]
    for phase, (members, nbytes, steps) in enumerate(
        zip(groups, (length, length // across), (priced[: across - 1], priced[across - 1 :]), strict=True)
    ):
        for step in steps:
            load: dict[object, int] = defaultdict(int)
            for group, stage in itertools.product(members, range(ipus)):
                for a, b in zip(group, group[1:] + group[:1], strict=True):
                    for p, q in hops(a, b, fabric, ipus, replicas, 1):
                        load[p + stage, q + stage] += nbytes // len(group)
            assert max(load.values()) == step.link, phase
    assert sum(s.sent for s in priced) == length * (replicas - 1) // replicas


# ---- prices


@pytest.mark.parametrize("replicas", [2, 3, 7, 64, 1000])
def test_cycles_are_latency_bytes_and_sums(replicas):
    """Patarasuk and Yuan: 2 (R - 1) / R n bytes a chip, by hand, with and without the adding."""
    one, nbytes = linked(topology="switch", algorithm="ring"), replicas * 4000
    found = collective("all-reduce", nbytes, replicas, one)
    gathered = collective("all-gather", nbytes, replicas, one)
    step = 7 + math.ceil((1e-6 + 4000 / 10e9) * one.clock_hz)
    assert gathered.cycles == (replicas - 1) * step
    assert (
        found.cycles
        == collective("reduce-scatter", nbytes, replicas, one).cycles + gathered.cycles
        > 2 * gathered.cycles
    )
    assert (found.steps, found.sent, found.methods) == (2 * (replicas - 1), 2 * (replicas - 1) * 4000, ("ring", "ring"))


def test_the_cheapest_algorithm_is_taken():
    small, large = (collective("all-reduce", n, 48, linked(topology="switch")) for n in (1000, 1 << 30))
    assert small.methods == ("recursive halving", "recursive halving")
    assert large.methods == ("ring", "ring")  # 48 is no power of two: chips beyond 32 would send all that they have
    assert collective("all-reduce", 1 << 30, 64, linked(topology="switch")).methods[0] == "recursive halving"
    for n in (1000, 1 << 30):
        prices = [
            collective("all-reduce", n, 48, linked(topology="switch", algorithm=a)).cycles
            for a in ("ring", "recursive halving")
        ]
        assert collective("all-reduce", n, 48, linked(topology="switch")).cycles == min(prices)


@pytest.mark.parametrize("links", [RING, SWITCH, {**RING, "topology": "mesh", "columns": 4}])
def test_faster_links_and_fewer_bytes_never_take_longer(links):
    for kind, replicas, ipus in itertools.product(("all-reduce", "all-gather", "reduce-scatter"), (2, 5, 16), (1, 2)):

        def cycles(nbytes: int, replicas=replicas, kind=kind, ipus=ipus, **changes: float) -> int:
            return collective(kind, nbytes, replicas, linked(**{**links, **changes}), ipus=ipus).cycles

        assert cycles(10_000) >= cycles(10_000, bytes_per_second=20e9) >= cycles(5_000, bytes_per_second=20e9)
        assert cycles(10_000) >= cycles(10_000, latency_seconds=0) > 0


def test_a_crossing_takes_the_latency_and_the_bytes_over_one_link():
    assert crossing_cycles(5000, linked()) == 7 + math.ceil((1e-6 + 5000 / 10e9) * 1.33e9)


BEFORE = {
    ("gc200", "all-reduce", 2, 1, 4194304): (72857, 4194304),
    ("gc200", "all-reduce", 4, 1, 4194304): (60867, 6291456),
    ("gc200", "all-reduce", 16, 4, 4194304): (170625, 7864320),
    ("gc200", "all-reduce", 64, 1, 4194304): (153632, 8257536),
    ("gc200", "reduce-scatter", 2, 1, 4194304): (36791, 2097152),
    ("gc200", "reduce-scatter", 4, 1, 4194304): (31116, 3145728),
    ("gc200", "reduce-scatter", 16, 4, 4194304): (87240, 3932160),
    ("gc200", "reduce-scatter", 64, 1, 4194304): (80352, 4128768),
    ("gc200", "all-gather", 2, 1, 4194304): (36066, 2097152),
    ("gc200", "all-gather", 4, 1, 4194304): (29751, 3145728),
    ("gc200", "all-gather", 16, 4, 4194304): (83385, 3932160),
    ("gc200", "all-gather", 64, 1, 4194304): (73280, 4128768),
    ("bow", "all-reduce", 2, 1, 1000): (2627, 1000),
    ("bow", "all-reduce", 2, 1, 4194304): (100119, 4194304),
    ("bow", "all-reduce", 4, 1, 1000): (5230, 1500),
    ("bow", "all-reduce", 4, 1, 4194304): (81315, 6291456),
    ("bow", "all-reduce", 16, 4, 1000): (39105, 1890),
    ("bow", "all-reduce", 16, 4, 4194304): (221745, 7864320),
    ("bow", "all-reduce", 64, 1, 1000): (83360, 2016),
    ("bow", "all-reduce", 64, 1, 4194304): (180896, 8257536),
}
"""What collectives took (cycles, bytes that each IPU sends) when chips could not say how they are joined: chip, kind,
replicas, IPUs of each, bytes."""


def test_the_vendors_pods_are_as_they_were():
    found = {key: collective(key[1], key[4], key[2], chip(key[0]), ipus=key[3]) for key in BEFORE}
    assert {key: (c.cycles, c.sent) for key, c in found.items()} == BEFORE
    assert (crossing_cycles(1 << 20, chip("gc200")), crossing_cycles(1 << 20, chip("bow"))) == (18_633, 25_449)


# ---- programs


@pytest.mark.parametrize(
    ("links", "stages", "replicas"), [(RING, 3, 5), (SWITCH, 1, 48), ({**RING, "topology": "mesh", "columns": 3}, 3, 2)]
)
def test_any_number_of_chips(links, stages, replicas):
    one = chip("gc200").variant(links=links, name="own")
    settings = {"strategy": "pipelined", "auto_pipeline": stages} if stages > 1 else {}
    compiled = tileflow.compile(
        MODEL,
        training=True,
        machine=one,
        micro_batch_size=2,
        gradient_accumulation=8,
        replication_factor=replicas,
        **settings,
    )
    assert compiled.report["replicas"] == {
        "count": replicas,
        "ipus": stages,
        "all": stages * replicas,
        "reserved": stages * replicas,
    }
    assert all(c.cycles > 0 for c in compiled.tiled.collectives)
    assert "All-reduce" in compiled.to_text()
    with pytest.raises(OptionError, match=r"links\.chips says that there are"):
        tileflow.compile(
            MODEL,
            training=True,
            machine=one.variant(links={**links, "chips": stages * replicas - 1}),
            micro_batch_size=2,
            gradient_accumulation=8,
            replication_factor=replicas,
            **settings,
        )
    one.variant(links={**links, "chips": stages * replicas}).links.require(stages * replicas)


def test_the_vendors_chips_take_powers_of_two_as_before():
    with pytest.raises(OptionError, match="power of 2"):
        tileflow.compile(MODEL, training=True, machine="gc200", gradient_accumulation=8, replication_factor=3)


def test_topologies_are_compared_in_a_study():
    program = machine.compile(MODEL, training=True, micro_batch_size=2, gradient_accumulation=4)
    chips = [
        chip("gc200").variant(name=name, links={**RING, "topology": name, **more})
        for name, more in (("ring", {}), ("mesh", {"columns": 8}), ("switch", {}))
    ]
    found = program.study(chips, replication_factor=[4, 64])
    speed = {(p.values["machine"], p.values["replication_factor"]): p.samples_per_second for p in found.points}
    assert speed["switch", 64] > speed["mesh", 64] > speed["ring", 64]  # 12, 28 and 126 latencies of small gradients
    assert all(speed[name, 64] > speed[name, 4] for name in ("mesh", "switch"))


# ---- files


def test_a_file_says_how_chips_are_joined(tmp_path):
    (tmp_path / "own.toml").write_text(
        'base = "gc200"\n[links]\ntopology = "mesh"\ncolumns = 8\nchips = 60\nbytes_per_second = 25e9\n'
    )
    one = chip(tmp_path / "own.toml")
    assert one.links == Fabric("mesh", 25e9, chips=60, columns=8)
    assert Chip.from_dict(one.to_dict()) == one == pickle.loads(pickle.dumps(one))
    assert ("links.columns", 8, "user", "given") in one.constants()
    assert one.key == chip("gc200").key
    assert one.energy == chip("gc200").energy


@pytest.mark.parametrize(
    ("links", "says"),
    [
        ({"topology": "torus"}, "links.topology must be ring, mesh or switch, not 'torus'"),
        ({"topology": "mesh"}, "links.columns says how many"),
        ({"columns": 3}, "other links have none"),
        ({"bytes_per_second": 0}, "links.bytes_per_second must be a number above 0"),
        ({"latency_seconds": -1}, "of at least 0"),
        ({"chips": 0}, "links.chips must be a whole number"),
        ({"chips": True}, "links.chips must be"),
        ({"latency_seconds": math.nan}, "of at least 0"),
        ({"algorithm": "tree"}, "links.algorithm must be auto, ring or recursive halving"),
        ({"algorithm": "recursive halving"}, "needs a switch"),
        ({"hops": 1}, "links has no entry 'hops'"),
    ],
)
def test_wrong_links_are_told(links, says):
    with pytest.raises(OptionError, match=says):
        Chip.from_dict({"base": "gc200", "links": {**RING, **links}})
    with pytest.raises(OptionError, match="links must"):
        Chip.from_dict({"base": "gc200", "links": {"topology": "ring"}})
    with pytest.raises(OptionError, match="links must be a table"):
        Chip.from_dict({**chip("gc200").to_dict(), "links": 3})
