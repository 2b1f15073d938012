"""The matrix kernels on every path of this CPU: micro-kernels over odd shapes and page ends, blockings, cuts, special values."""
import functools
import mmap
from collections.abc import Sequence

import numpy as np
import paths
import pytest
from peers import needs

from tileflow.kernels.elementwise.epilogue import Along, Epilogue
from tileflow.kernels.elementwise.expr import Var, maximum
from tileflow.kernels.gemm import Bias, GemmProblem, Serial
from tileflow.kernels.gemm import float32 as products
from tileflow.kernels.gemm.blocking import Blocking, blocking, prepacked
from tileflow.kernels.gemm.micro import CHAIN, WIDE, columns, copy, dot, outer, transpose
from tileflow.kernels.gemm.problem import simplify
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import In, Out
from tileflow.kernels.machine.leaf import Leaf

PATHS = [paths.on(path, dtype) for path in cpu.available() for dtype in ("f4", "f8")]
OUTER, OUTER_T, DOT, COPY, TRANSPOSE = range(5)


@functools.cache
def micro_leaf(path: str, dtype: str) -> Leaf:
    """Every micro-kernel of a path behind one leaf over addresses: (which, m, n, k, a, b, c, row of c, accumulate)."""
    by_columns, by_dots, move, turn, size = outer(dtype), dot(dtype), copy(dtype), transpose(dtype), int(dtype[1])

    def micro(which, m, n, k, a, b, c, c_row, accumulate):
        if which == 0:
            by_columns(m, n, k, a, k * size, size, b, n * size, c, c_row, accumulate)
        elif which == 1:
            by_columns(m, n, k, a, size, m * size, b, n * size, c, c_row, accumulate)
        elif which == 2:
            by_dots(m, n, k, a, k * size, b, k * size, c, c_row, accumulate)
        elif which == 3:
            move(m, n, a, n * size, c, c_row)
        else:
            turn(m, n, a, n * size, c, c_row)

    return Leaf(micro, ", ".join(["i8"] * 9), key=f"{path}-{dtype}")


class Edge:
    """Memory that ends at a page nobody may touch: an access past the end kills the test process."""

    def __init__(self, nbytes: int) -> None:
        import ctypes
        self._size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self._size + mmap.PAGESIZE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        start = self._bytes.ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(start + self._size), ctypes.c_size_t(mmap.PAGESIZE), 0):
            pytest.skip("no mprotect here")

    def array(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """An array that ends where the readable memory ends."""
        size = int(np.prod(shape)) * int(dtype[1])
        return self._bytes[self._size - size:self._size].view(dtype).reshape(shape)


@functools.cache
def edge(name: str) -> Edge:
    return Edge(1 << 17)


def at_edge(name: str, values: np.ndarray) -> np.ndarray:
    """A copy of `values` at the end of the page of that name."""
    array = edge(name).array(values.shape, values.dtype.str[1:])
    array[...] = values
    return array


def sizes(path: str, dtype: str) -> list[tuple[int, int, int]]:
    """Shapes around the register blocks, with zeros, ones and primes."""
    rows, panel = cpu.PATHS[path].tile.rows, columns(dtype, cpu.PATHS[path])
    lanes = panel // 2
    return [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (1, WIDE * lanes + 3, 5), (1, 2 * WIDE * lanes, 2), (2, lanes, lanes),
            (rows, panel, lanes + 1), (rows + 1, panel + 1, 7), (rows - 1, panel - 1, 2 * lanes - 1), (7, 13, 11),
            (2 * rows + 3, 2 * panel + lanes + 1, 37), (5, 3, 3 * lanes), (4, 4, 1), (9, 5, 17),
            (3, 5, CHAIN * lanes + lanes + 3)]


@pytest.mark.parametrize(("path", "dtype"), PATHS)
def test_micro_kernels_compute_the_product_and_touch_nothing_else(path: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    tolerance = 64 * np.finfo(dtype).eps
    with cpu.forced(path):
        leaf = micro_leaf(path, dtype)
        leaf.compile()
    for m, n, k in sizes(path, dtype):
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        for which, left, right in ((OUTER, a, b), (OUTER_T, a.T, b), (DOT, a, b.T)):
            for accumulate in (0, 1):
                x, y = at_edge("a", np.ascontiguousarray(left)), at_edge("b", np.ascontiguousarray(right))
                c = at_edge("c", np.full((m, n + 3), 1.5, dtype))[:, 3:]           # odd addresses; three guard columns before
                leaf(which, m, n, k, x.ctypes.data, y.ctypes.data, c.ctypes.data if c.size else 0, (n + 3) * c.itemsize, accumulate)
                wanted, terms = a.astype("f8") @ b.astype("f8") + 1.5 * accumulate, abs(a.astype("f8")) @ abs(b.astype("f8"))
                assert (abs(c - wanted) <= tolerance * (1 + abs(wanted)) + np.finfo(dtype).eps * terms).all()          # sums may cancel
                assert (edge("c").array((m, n + 3), dtype)[:, :3] == 1.5).all()


@pytest.mark.parametrize(("path", "dtype"), PATHS)
def test_copy_and_transpose_touch_only_their_matrices(path: str, dtype: str) -> None:
    with cpu.forced(path):
        leaf = micro_leaf(path, dtype)
        leaf.compile()
    for m, n, _ in sizes(path, dtype):
        x = at_edge("a", np.arange(m * n, dtype=dtype).reshape(m, n))
        for which, shape in ((COPY, (m, n)), (TRANSPOSE, (n, m))):
            c = at_edge("c", np.full((shape[0], shape[1] + 3), -1, dtype))[:, 3:]
            leaf(which, m, n, 0, x.ctypes.data, 0, c.ctypes.data if c.size else 0, (shape[1] + 3) * c.itemsize, 0)
            np.testing.assert_array_equal(c, x if which == COPY else x.T)
            assert (edge("c").array((shape[0], shape[1] + 3), dtype)[:, :3] == -1).all()


def run(p: GemmProblem, a: np.ndarray, b: np.ndarray, *, bias: Bias | None = None, addend: np.ndarray | None = None,
        cuts: int = 1,
        force: Blocking | None = None, alpha: float = 1.0, beta: float = 1.0, epilogue: Epilogue | None = None,
        more: Sequence[np.ndarray] = (), serial: Serial | None = None) -> np.ndarray:
    """Run the calls of a problem, each range in `cuts` parts, last part first. `more` are inputs from the fourth on."""
    c = np.full((*p.batch, p.m, p.n), 77, a.dtype)
    arrays = [a, b, addend, *more]
    works: dict[str, np.ndarray] = {}
    for call in products.calls(a.dtype.str[1:], p, In(0, a.shape), In(1, b.shape), Out(0, c.shape), alpha=alpha, beta=beta,
                               bias=bias, force=force, epilogue=epilogue, serial=serial):
        values = []
        for parameter, arg in zip(call.leaf.takes(call.args), call.args, strict=True):
            if isinstance(arg, In):
                values.append(arrays[arg.index].reshape(arg.shape))
            elif isinstance(arg, Out):
                values.append(c.reshape(arg.shape))
            elif parameter.is_array:
                shape = (cuts, *arg.shape) if parameter.cut == "w" else arg.shape
                values.append(works.setdefault(arg.name, np.full(shape, np.nan, arg.dtype)))
            else:
                values.append(arg)
        for w in reversed(range(cuts)):
            assert call.leaf(*values, lo=call.n * w // cuts, n=call.n * (w + 1) // cuts, worker=w) == 0
    return c


def operands(rng: np.random.Generator, p: GemmProblem, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    a = rng.standard_normal((p.k, p.m) if p.trans_a else (p.m, p.k)).astype(dtype)
    return a, rng.standard_normal((p.n, p.k) if p.trans_b else (p.k, p.n)).astype(dtype)


def exact(p: GemmProblem, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product in float64."""
    a, b = a.astype("f8"), b.astype("f8")
    return (a.swapaxes(-1, -2) if p.trans_a else a) @ (b.swapaxes(-1, -2) if p.trans_b else b)


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize("way", ["direct", "dots", "panels", "packed"])
def test_every_way_on_every_path(path: str, way: str) -> None:
    rng = np.random.default_rng(1)
    with cpu.forced(path) as current:
        plan = Blocking(way, 24, 2 * columns("f4", current), 32)
        for m, n, k in ((1, 1, 1), (25, 67, 70), (24, 64, 32), (13, 40, 33), (5, 3, 0), (49, 130, 97)):
            for trans in range(4):
                p = GemmProblem(m, n, k, bool(trans & 1), bool(trans & 2))
                simple = simplify(p)
                fits = {"packed": k > 0, "panels": k > 0, "direct": not simple.trans_b, "dots": k == 0 or (simple.trans_b and not simple.trans_a)}
                if not fits[way]:
                    continue
                a, b = operands(rng, p, "f4")
                got = run(p, a, b, force=plan)
                np.testing.assert_allclose(got, exact(p, a, b), atol=3e-5, err_msg=str(p))
                np.testing.assert_array_equal(run(p, a, b, force=plan, cuts=2), got)
                np.testing.assert_array_equal(run(p, a, b, force=plan, cuts=3), got)


@pytest.mark.parametrize("way", ["direct", "dots", "panels", "packed"])
def test_alpha_and_every_form_of_bias(way: str) -> None:
    rng = np.random.default_rng(2)
    p = GemmProblem(27, 45, 19, trans_b=way != "direct")
    a, b = operands(rng, p, "f4")
    plan = Blocking(way, 24, 32, 32)
    for shape, row, column in (((45,), 0, 1), ((27, 1), 1, 0), ((1, 1), 0, 0), ((27, 45), 45, 1)):
        addend = rng.standard_normal(shape).astype("f4")
        got = run(p, a, b, bias=Bias(In(2, shape), row, column), addend=addend, alpha=0.5, beta=-2.0, force=plan)
        np.testing.assert_allclose(got, 0.5 * exact(p, a, b) - 2.0 * addend, atol=2e-5)
    np.testing.assert_allclose(run(p, a, b, alpha=3.0, force=plan), 3 * exact(p, a, b), atol=5e-5)


SHAPES = [(40, 256, 320, False, True), (40, 320, 256, False, False), (256, 320, 40, True, False), (40, 10, 256, False, True),
          (1, 300, 1100, False, False), (3, 700, 513, False, False), (200, 600, 900, False, False), (200, 520, 520, True, False),
          (60, 50, 70, True, True), (77, 1, 300, True, False), (300, 1, 77, False, False), (64, 64, 64, False, True)]


@pytest.mark.parametrize(("m", "n", "k", "trans_a", "trans_b"), SHAPES)
def test_chosen_way_is_as_accurate_as_numpy(m: int, n: int, k: int, trans_a: bool, trans_b: bool) -> None:
    rng = np.random.default_rng(3)
    p = GemmProblem(m, n, k, trans_a, trans_b)
    for scale in (lambda x: x, np.abs):
        a, b = (scale(x) for x in operands(rng, p, "f4"))
        right = exact(p, a, b)
        got = run(p, a, b)
        theirs = (a.T if trans_a else a) @ (b.T if trans_b else b)
        size = exact(p, np.abs(a), np.abs(b))
        unit = np.finfo("f4").eps
        assert (np.abs(got - right) / size).max() <= max(2 * (np.abs(theirs - right) / size).max(), 3 * unit)
        np.testing.assert_array_equal(run(p, a, b, cuts=2), got)


def test_special_values_propagate() -> None:
    for m, n, k, trans_b in ((13, 35, 20, False), (5, 6, 33, True), (130, 40, 40, True)):
        p = GemmProblem(m, n, k, trans_b=trans_b)
        a, b = np.ones((m, k), "f4"), np.ones((n, k) if trans_b else (k, n), "f4")
        a[1, 2], a[2, 3], a[3, 4], a[4, 5] = np.nan, np.inf, 0, np.inf
        right = b.T if trans_b else b
        right[4, 1], right[5, 2] = np.nan, -np.inf
        right[5, 3] = 0
        with np.errstate(all="ignore"):
            wanted = exact(p, a, b)
        np.testing.assert_array_equal(run(p, a, b), wanted.astype("f4"))


def test_batches_broadcast_over_any_axes() -> None:
    rng = np.random.default_rng(4)
    for batch_a, batch_b in (((3,), (3,)), ((2, 3), (1, 3)), ((2, 1), (2, 3)), ((4, 1, 3, 1), (1, 2, 1, 5)),
                             ((2, 1, 2, 1, 2), (1, 3, 1, 2, 1)), ((5,), (1,)), ((1,), (5,)), ((0,), (0,))):
        for trans_a, trans_b in ((False, False), (True, False), (False, True)):
            batch = np.broadcast_shapes(batch_a, batch_b)
            a = rng.standard_normal((*batch_a, *((6, 5) if trans_a else (5, 6)))).astype("f4")
            b = rng.standard_normal((*batch_b, *((7, 6) if trans_b else (6, 7)))).astype("f4")
            steps = [tuple(s // x.itemsize for s in np.broadcast_to(x, (*batch, *x.shape[-2:])).strides[:-2]) for x in (a, b)]
            p = GemmProblem(5, 7, 6, trans_a, trans_b, batch, *steps)
            got = run(p, a, b)
            np.testing.assert_allclose(got, exact(p, a, b), atol=1e-5)
            np.testing.assert_array_equal(run(p, a, b, cuts=4), got)
            if batch != (0,):
                packed = run(p, a, b, force=Blocking("packed", 24, 32, 32))
                np.testing.assert_allclose(packed, exact(p, a, b), atol=1e-5)


def test_rows_of_a_batch_join_one_product() -> None:
    p = simplify(GemmProblem(8, 16, 4, batch=(5, 6), a_step=(6 * 32, 32), b_step=(0, 0)))
    assert (p.m, p.batch) == (240, ())
    assert simplify(GemmProblem(8, 16, 4, True, False, (5,), (32,), (0,))).batch == (5,)


def test_blocking_depends_on_shapes_only_and_packs_what_outgrows_the_cache() -> None:
    for name in cpu.available():
        path = cpu.PATHS[name]
        ways = [blocking(simplify(GemmProblem(*shape)), "f4", path).way for shape in
                ((64, 64, 64), (40, 256, 320, False, True), (2048, 2048, 2048), (1, 4096, 4096), (300, 300, 64, True, True))]
        assert ways == ["direct", "dots",
                        *(["tiles", "direct", "tiles"] if path.amx else ["packed", "direct", "packed"])]


@pytest.mark.parametrize("path", paths.PATHS)
def test_dot_products_are_as_exact_as_torch(path: str) -> None:
    """Several runs of CHAIN products in each lane, of numbers whose sums only grow."""
    torch = needs("torch")
    rng = np.random.default_rng(9)
    a, b = rng.random((4, 4096)).astype("f4"), rng.random((64, 4096)).astype("f4")
    p = GemmProblem(4, 64, 4096, trans_b=True)
    with cpu.forced(path) as current:
        assert blocking(p, "f4", current).way == "dots"
        ours = run(p, a, b)
    reference = a.astype("f8") @ b.astype("f8").T
    peer = (torch.from_numpy(a) @ torch.from_numpy(b).T).numpy()
    assert np.abs(ours - reference).max() <= np.abs(peer - reference).max()


def test_blocking_of_avx2_keeps_rows_of_b_out_of_each_others_sets() -> None:
    """Panels from 40 KB on; A is copied too where its rows fall into the same sets, in several runs of sums, or transposed and large."""
    path = cpu.PATHS["avx2"]
    expected = {(96, 96, 96): "direct", (128, 128, 128): "panels", (257, 511, 509): "panels", (512, 512, 512): "packed", (257, 511, 600): "packed",
                (60000, 16, 640, True): "packed", (256, 32, 40, True): "direct", (64, 10, 256, False, True): "panels"}
    for shape, way in expected.items():
        p = simplify(GemmProblem(*shape))
        plan = blocking(p, "f4", path)
        assert plan.way == way, shape
        assert way == "direct" or p.m <= 72 or p.m > 1000 or -(-p.m // plan.rows) % 2 == 0          # a few blocks of rows are an even number


@pytest.mark.parametrize(("m", "n", "k", "trans_a"), [(67, 131, 129, False), (151, 30, 512, False), (9000, 16, 40, True)])
@pytest.mark.parametrize("path", paths.PATHS)
def test_chosen_panels_against_float64(path: str, m: int, n: int, k: int, trans_a: bool) -> None:
    """Panels of odd sizes with A where it lies and copied, in one and in several units of the range, with NaN where it belongs."""
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal(shape).astype("f4") for shape in ((k, m) if trans_a else (m, k), (k, n)))
    b[k // 2, n - 1] = np.nan
    p = GemmProblem(m, n, k, trans_a)
    with cpu.forced(path):
        c = run(p, a, b)
        assert np.isnan(c[:, -1]).all()
        np.testing.assert_allclose(c[:, :-1], exact(p, a, b)[:, :-1], atol=1e-3)
        assert run(p, a, b, cuts=2).tobytes() == c.tobytes()


@pytest.mark.parametrize("path", paths.PATHS)
def test_an_epilogue_in_finished_blocks_has_the_bits_of_a_pass_afterwards(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every way, over batches whose axes do not join, and in pieces; on a column it is a pass afterwards."""
    rng = np.random.default_rng(6)
    x, bias, skip = (Var(i, "float32") for i in range(3))
    batch = ((2, 3, 2), (2, 1, 2))
    problems = [(GemmProblem(27, 45, 40), "direct", None), (GemmProblem(27, 45, 40, trans_b=True), "dots", None),
                (GemmProblem(27, 45, 40), "packed", None), (GemmProblem(27, 45, 40), "panels", Serial("k", 2)),
                (GemmProblem(27, 45, 40), "packed", Serial("n", 2)),
                (GemmProblem(13, 9, 7, False, False, batch[0], (13 * 7 * 2, 0, 13 * 7), (63 * 6, 63 * 2, 63)), "direct",
                 None),
                (GemmProblem(40, 1, 9), "", None)]
    with cpu.forced(path) as current:
        for p, way, serial in problems:
            shape_a, shape_b = (batch[1], batch[0]) if p.batch else ((), ())
            a = rng.standard_normal((*shape_a, p.m, p.k)).astype("f4")
            b = rng.standard_normal((*shape_b, *((p.n, p.k) if p.trans_b else (p.k, p.n)))).astype("f4")
            size = (*p.batch, p.m, p.n)
            more = [rng.standard_normal((p.n,)).astype("f4"), rng.standard_normal(size).astype("f4")]
            epilogue = Epilogue((maximum(x + bias, 0) + skip,), (Along(In(3, (p.n,)), "channel"), Along(In(4, size), "full")), int(np.prod(size)))
            force = Blocking(way, 12, 2 * columns("f4", current), 32) if way else None
            found = []
            for least in (0, 1 << 40):
                monkeypatch.setattr(products, "FINISHED_BYTES", least)
                found += [run(p, a, b, force=force, epilogue=epilogue, more=more, serial=serial, cuts=cuts) for cuts in (1, 3)]
            np.testing.assert_array_equal(found[0], np.maximum(run(p, a, b, force=force, serial=serial) + more[0], 0) + more[1])
            assert len({c.tobytes() for c in found}) == 1


def test_panels_beforehand_are_summed_in_the_same_order() -> None:
    """The blocking of a packed operand keeps the depth of the plain way, unless that is made of dot products or only
    packing makes tiles pay."""
    for name in cpu.available():
        for shape in ((64, 64, 64), (40, 320, 256, False, False), (256, 320, 40, True), (2048, 2048, 2048), (300, 300, 700, True, True)):
            p = simplify(GemmProblem(*shape))
            packed = prepacked(p, "f4", cpu.PATHS[name])
            assert packed is not None
            assert packed.panels
            plain = blocking(p, "f4", cpu.PATHS[name])
            assert packed.depth == plain.depth or (packed.way == "tiles" and plain.way != "tiles"
                                                   and cpu.PATHS[name].amx)


@pytest.mark.skipif("avx512" not in cpu.available(), reason="the other paths copy all transposed operands")
@pytest.mark.parametrize(("m", "n"), [(512, 64), (64, 512), (1024, 51)])
def test_rows_that_share_cache_sets_are_copied_and_keep_their_bits(m: int, n: int) -> None:
    """Of a transposed A: what is read where it lies has the sums of what is copied."""
    with cpu.forced("avx512") as current:
        p = GemmProblem(m, n, 150, trans_a=True)
        assert blocking(p, "f4", current).way == "packed"
        assert blocking(GemmProblem(m - 16, n - 3, 150, trans_a=True), "f4", current).way == "direct"
        a, b = operands(np.random.default_rng(4), p, "f4")
        np.testing.assert_array_equal(run(p, a, b),
                                      run(p, a, b, force=Blocking("direct", 96, 2 * columns("f4", current), 256)))
