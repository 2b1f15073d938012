"""Automatic mixed precision: what each operator is computed in, where casts stand, and what asks for them."""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import golden_casts
import numpy as np
import paths
import pytest
from peers import needs
from places import ROOT

import tileflow
from tileflow import nn
from tileflow.compiler import CompileOptions, training
from tileflow.graph import Builder, Graph, State, TensorType, Value, verify
from tileflow.loss import find
from tileflow.nn import Module, Tensor, record
from tileflow.optim import SGD
from tileflow.options.options import Options
from tileflow.passes.autocast import CastRule, autocast
from tileflow.passes.casts import cast_of, shorten_casts
from tileflow.precision.casting import choices
from tileflow.precision.policy import ALIASES, DEFAULT, SETS, Policy
from tileflow.precision.types import Precision
from tileflow.program.batching import Batching
from tileflow.system.errors import OptionError, TileflowError

MIXED = Precision.of(Options(precision="16-mixed"))
X = ("x", TensorType("float32", (4, 8)))


def graph_of(build: Callable[[Builder, Value], Value | Sequence[Value]], parameters: Sequence[tuple[int, ...]] = ()) -> Graph:
    """A graph with the input x [4, 8] and parameters p0, p1 …; `build` gives its outputs."""
    graph = Graph()
    b = Builder(graph)
    x = b.input(*X)
    for i, shape in enumerate(parameters):
        graph.states.append(State(f"p{i}", "parameter", Value(b.name(f"p{i}"), TensorType("float32", shape))))
    made = build(b, x)
    graph.outputs = list(made) if isinstance(made, (list, tuple)) else [made]
    return graph


def parameter(b: Builder, i: int) -> Value:
    return b.graph.states[i].input


def cast(graph: Graph, precision: Precision = MIXED) -> Graph:
    choose = choices(precision, graph)
    assert choose is not None
    return verify(autocast(graph, choose))


def types(graph: Graph) -> dict[str, str]:
    """What each operator computes in (its first output's type), casts left out; a second one of the same name is name#2."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.op.name != "Cast":
            name, k = node.op.name, 1
            while name in found:
                k += 1
                name = f"{node.op.name}#{k}"
            found[name] = node.outputs[0].dtype
    return found


def casts(graph: Graph) -> list[str]:
    return [f"{n.operands[0].name}:{n.operands[0].dtype}->{n.outputs[0].dtype}" for n in graph.nodes if n.op.name == "Cast"]


# ---- the pass

def test_products_in_16_bits_with_their_bias_and_what_follows() -> None:
    def build(b: Builder, x: Value) -> Value:
        h = b.Relu(b.Add(b.MatMul(x, parameter(b, 0)), parameter(b, 1)))
        return b.Softmax(b.Gemm(h, parameter(b, 2), None))
    graph = cast(graph_of(build, [(8, 6), (6,), (6, 3)]))
    assert types(graph) == {"MatMul": "float16", "Add": "float16", "Relu": "float16", "Gemm": "float16", "Softmax": "float32"}
    assert graph.outputs[0].dtype == "float32"
    assert casts(graph) == ["x:float32->float16", "p0:float32->float16", "p1:float32->float16", "p2:float32->float16", "gemm:float16->float32"]


def test_outputs_keep_their_types_and_names() -> None:
    graph = graph_of(lambda b, x: (y := b.MatMul(x, parameter(b, 0)), b.Relu(y), y), [(8, 8)])
    names = [v.name for v in graph.outputs]
    cast(graph)
    assert [v.dtype for v in graph.outputs] == ["float32"] * 3
    assert [v.name for v in graph.outputs] == names
    assert graph.outputs[0] is graph.outputs[2]


def test_each_value_is_cast_once_to_a_type() -> None:
    graph = cast(graph_of(lambda b, x: b.Add(b.MatMul(x, parameter(b, 0)), b.MatMul(b.Exp(x), parameter(b, 0))), [(8, 8)]))
    assert casts(graph) == ["x:float32->float16", "p0:float32->float16", "exp:float32->float16", "add.float16:float16->float32"]


def test_data_of_both_types_promote_and_numbers_follow() -> None:
    def build(b: Builder, x: Value) -> list[Value]:
        y = b.MatMul(x, parameter(b, 0))
        return [b.Add(y, x), b.Mul(y, b.scalar(0.5, y)), b.Add(y, b.scalar(1e-9, y)), b.Mul(y, b.scalar(1e9, y)),
                b.Sub(y, b.constant(np.full((8,), 3, np.float32)))]
    assert types(cast(graph_of(build, [(8, 8)]))) == {"MatMul": "float16", "Add": "float32", "Mul": "float16", "Add#2": "float32", "Mul#2": "float32",
                                                      "Sub": "float32"}
    brain = types(cast(graph_of(build, [(8, 8)]), Precision.of(Options(precision="bf16-mixed"))))
    assert (brain["MatMul"], brain["Mul"], brain["Add#2"], brain["Mul#2"]) == ("bfloat16",) * 4


def test_what_depends_on_weights_only_stays_in_float32() -> None:
    def build(b: Builder, x: Value) -> Value:
        w = parameter(b, 0)
        return b.MatMul(x, b.Transpose(b.Mul(w, b.Sqrt(b.Abs(w))), perm=(1, 0)))
    graph = cast(graph_of(build, [(8, 8)]))
    assert types(graph) == {"Abs": "float32", "Sqrt": "float32", "Mul": "float32", "Transpose": "float32", "MatMul": "float16"}


def test_other_types_are_left_alone() -> None:
    """Whole numbers and float64; an operator whose attributes name a type takes what it was written with."""
    def build(b: Builder, x: Value) -> list[Value]:
        wide = b.Cast(x, to="float64")
        return [b.MatMul(wide, wide_w := b.Cast(parameter(b, 0), to="float64")), b.ArgMax(b.MatMul(x, parameter(b, 0)), axis=1), wide_w]
    graph = cast(graph_of(build, [(8, 8)]))
    assert [v.dtype for v in graph.outputs] == ["float64", "int64", "float64"]
    assert types(graph) == {"MatMul": "float64", "MatMul#2": "float16", "ArgMax": "int64"}
    from tileflow.kernels.elementwise.expr import Var
    graph = cast(graph_of(lambda b, x: b.Map(b.MatMul(x, parameter(b, 0)), exprs=(Var(0, "float32") * 2,)), [(8, 8)]))
    assert types(graph) == {"MatMul": "float16", "Map": "float32"}


@pytest.mark.parametrize(("rule", "expected"), [("fp16", "float16"), ("fp32", "float32"), ("promote", "float32"), ("demote", "float16"),
                                                ("follow", "float32"), ("off", "float32")])
def test_every_rule(rule: Any, expected: str) -> None:
    def build(b: Builder, x: Value) -> Value:
        return b.Max(b.MatMul(x, parameter(b, 0)), b.Exp(x))
    graph = graph_of(build, [(8, 8)])
    found = {"MatMul": "fp16", "Exp": "fp32", "Max": rule}
    done = autocast(graph, lambda node: CastRule(found[node.op.name], "float16"))        # type: ignore[arg-type]
    assert types(verify(done))["Max"] == expected


def test_a_parameter_is_promoted_where_the_policy_says_so() -> None:
    def build(b: Builder, x: Value) -> list[Value]:
        y = b.MatMul(x, parameter(b, 0))
        return [b.Concat(y, parameter(b, 1), axis=0), b.Max(y, parameter(b, 1))]
    assert types(cast(graph_of(build, [(8, 8), (1, 8)]))) == {"MatMul": "float16", "Concat": "float32", "Max": "float16"}


def test_batch_normalisation_has_16_bit_images_and_float32_parameters() -> None:
    """As in PyTorch: nothing is cast but the images, before the convolution; statistics and what is trained stay in float32."""
    class Block(Module):
        def __init__(self) -> None:
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x)).relu()
    for mode in (True, False):
        graph = cast(record(Block(), [("x", TensorType("float32", (2, 3, 8, 8)))], training=mode, dtype="float32"))
        norm = next(n for n in graph.nodes if n.op.name == "BatchNormalization")
        assert [v.dtype for v in norm.operands] == ["float16", *["float32"] * (len(norm.operands) - 1)]
        assert [v.dtype for v in norm.outputs] == ["float16", *["float32"] * (len(norm.outputs) - 1)]
        assert all(s.output is None or s.output.dtype == "float32" for s in graph.states)
        assert types(graph)["Relu"] == "float16"
        assert len(casts(graph)) == 4, "image, weight, bias and the result"


# ---- casts that cancel

@pytest.mark.parametrize(("chain", "left"), [
    (("float16", "float32", "float16"), []), (("bfloat16", "float32", "bfloat16"), []), (("float32", "float64", "float32"), []),
    (("float16", "float64", "float16"), []), (("float16", "float32", "float64", "float32", "float16"), []),
    (("float16", "float32", "bfloat16"), ["float16->bfloat16"]), (("float16", "float32", "float64"), ["float16->float64"]),
    (("float32", "float16", "float32"), ["float32->float16", "float16->float32"]), (("float16", "bfloat16", "float16"), ["float16->bfloat16",
                                                                                                                      "bfloat16->float16"]),
    (("float32", "bfloat16", "float32"), ["float32->bfloat16", "bfloat16->float32"]), (("float16", "float16"), []),
    (("float16", "int32", "float16"), ["float16->int32", "int32->float16"]), (("float64", "float32", "float64"), ["float64->float32",
                                                                                                                "float32->float64"])])
def test_casts_that_lose_nothing_cancel(chain: tuple[str, ...], left: list[str]) -> None:
    """Between two operators; written as Cast, and as the Map that differentiation makes."""
    from tileflow.kernels.elementwise import expr
    for how in ("Cast", "Map"):
        graph = Graph()
        b = Builder(graph)
        v = b.Relu(b.input("x", TensorType(chain[0], (4,))))
        for to in chain[1:]:
            v = b.Cast(v, to=to) if how == "Cast" else b.Map(v, exprs=(expr.cast(expr.Var(0, v.dtype), to),))
        graph.outputs = [b.Abs(v)]
        verify(shorten_casts(graph))
        assert [f"{n.operands[0].dtype}->{n.outputs[0].dtype}" for n in graph.nodes[1:-1]] == left


def test_a_cast_that_is_a_result_stays() -> None:
    graph = Graph()
    b = Builder(graph)
    x = b.Relu(b.input("x", TensorType("float16", (4,))))
    wide = b.Cast(x, to="float32")
    graph.outputs = [wide, b.Cast(wide, to="float16")]
    verify(shorten_casts(graph))
    assert [v.dtype for v in graph.outputs] == ["float32", "float16"]
    assert graph.outputs[1] is not x


# ---- training programs

def trained(net: Module, shape: tuple[int, ...] = (4, 8), accumulation: int = 2, precision: Precision = MIXED) -> Any:
    graph = record(net, [("x", TensorType("float32", shape))], training=True, dtype="float32")
    batching = Batching(shape[0], accumulation)
    return training(graph, find("cross_entropy"), SGD(lr=0.1), batching, CompileOptions(precision)).program


@pytest.mark.parametrize("accumulation", [1, 3])
def test_weights_are_cast_once_per_update_and_gradients_arrive_in_float32(accumulation: int) -> None:
    program = trained(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 3)), accumulation=accumulation)
    prologue = program.parts["prologue"]
    assert sorted(n.operands[0].name for n in prologue.nodes) == ["0.bias", "0.weight", "3.bias", "3.weight"]
    assert {n.op.name for n in prologue.nodes} == {"Cast"}
    read = {v for n in program.micro.nodes for v in n.operands}
    assert not [s.name for s in program.micro.parameters if s.input in read and not s.name.startswith("2.")], "the step reads the casts only"
    for part in program.graphs:
        assert all(s.input.dtype in ("float32", "float64") for s in part.states), "masters, moments and accumulators"


def assert_no_pairs(program: Any) -> None:
    """No value of 16 bits is widened only to be narrowed again, and nothing is cast twice to the same type."""
    for graph in program.graphs:
        made = {n.outputs[0]: source for n in graph.nodes if (source := cast_of(n)) is not None}
        for y, x in made.items():
            assert not (x in made and made[x].dtype == y.dtype and y.type.is_half), y
        keys = [(x, y.dtype) for y, x in made.items()]
        assert len(keys) == len(set(keys))


def test_there_are_no_pairs_of_casts() -> None:
    class Block(Module):
        def __init__(self) -> None:
            self.attention, self.norm, self.up, self.down = nn.MultiheadAttention(8, 2), nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
            x = x + self.attention(self.norm(x))
            return (x + self.down(nn.GELU()(self.up(x)))).mean(1)
    assert_no_pairs(trained(Block(), (4, 5, 8)))


def test_float32_programs_are_what_they_were() -> None:
    """Without a mixed precision, and without layers that ask for it, the step does nothing at all."""
    graph = graph_of(lambda b, x: b.MatMul(x, parameter(b, 0)), [(8, 8)])
    for name in ("32", "64", "16-true"):
        assert choices(Precision.of(Options(precision=name)), graph) is None


@pytest.mark.parametrize("case", [c for c in golden_casts.CASES if c not in golden_casts.EXPORTED])
def test_golden_lists(case: str) -> None:
    """Every cast of whole training programs, and no pair among them."""
    program = golden_casts.CASES[case]()
    assert_no_pairs(program)
    wanted = (golden_casts.FOLDER / f"{case}.txt").read_text(encoding="utf-8")
    assert golden_casts.casts(program) == wanted, "python tests/oracle/golden_casts.py --write"


def test_the_docs_show_the_list() -> None:
    docs = ROOT / "docs" / "precision.md"
    assert (golden_casts.FOLDER / "digits_cnn.txt").read_text(encoding="utf-8") in docs.read_text(encoding="utf-8")


# ---- scopes

class Net(Module):
    """conv-like layers with scopes of every kind; `how` says which."""

    def __init__(self, how: str = "", policy: Policy | None = None) -> None:
        self.a, self.b, self.c, self.how, self.policy = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 3), how, policy

    def forward(self, x: Tensor) -> Tensor:                        # type: ignore[override]
        x = self.a(x)
        if self.how == "scope off":
            with nn.autocast(enabled=False):
                x = self.b(x)
        elif self.how == "scope on":
            with tileflow.autocast(dtype="bfloat16", policy=self.policy):
                x = self.b(x)
        else:
            x = self.b(x)
        return self.last(x) if self.how == "decorated" else self.c(x)

    @nn.autocast(enabled=False)
    def last(self, x: Tensor) -> Tensor:
        return self.c(x)


def products(net: Module, precision: str = "32", **options: Any) -> list[str]:
    """The types of the products of a network, in order."""
    graph = record(net, [X], training=True, dtype="float32")
    choose = choices(Precision.of(Options(precision=precision, **options)), graph)
    if choose is not None:
        verify(autocast(graph, choose))
        assert not any(n.origin.hints.casting is not None for n in graph.nodes)
    return [n.outputs[0].dtype for n in graph.nodes if n.op.name in ("Gemm", "FusedMatMul")]


H, F, B = "float16", "float32", "bfloat16"


def test_model_and_layer_level() -> None:
    assert products(Net()) == [F, F, F]
    assert products(Net(), "16-mixed") == [H, H, H]
    assert products(Net().autocast(enabled=True)) == [H, H, H]
    assert products(Net().autocast(True, dtype="bfloat16")) == [B, B, B]
    assert products(Net().autocast(), "bf16-mixed") == [B, B, B], "the precision's type where the layer names none"
    net = Net().autocast()
    net.b.autocast(False)
    assert products(net) == [H, F, H]
    next(net.b.children())[1].autocast(True)
    assert products(net) == [H, H, H], "the innermost counts"
    net = Net()
    net.b.autocast()
    assert products(net) == [F, H, F]
    net.b.autocast(False)
    assert products(net, "16-mixed") == [H, F, H], "the last word of a layer counts"


def test_scopes_and_decorators() -> None:
    assert products(Net("scope off"), "16-mixed") == [H, F, H]
    assert products(Net("scope on"), "16-mixed") == [H, B, H]
    assert products(Net("scope on")) == [F, B, F]
    assert products(Net("decorated"), "bf16-mixed") == [B, B, F]
    assert products(Net("decorated").autocast()) == [H, H, F]


def test_the_global_switch() -> None:
    assert products(Net("scope on").autocast(), autocast_enabled=False) == [F, F, F]
    with pytest.raises(OptionError, match="precision 16-mixed casts automatically, which autocast_enabled = false forbids"):
        Options(precision="16-mixed", autocast_enabled=False)
    with pytest.raises(OptionError, match="autocast casts automatically, which autocast_enabled = false forbids"):
        Options(autocast={"Softmax": "fp16"}, autocast_enabled=False)


def test_policies_of_scopes() -> None:
    """A policy names operators, or classes of modules: then all that such modules record, but for inner ones that it names as well."""
    class Head(nn.Sequential):
        pass
    net = nn.Sequential(nn.Linear(8, 8), Head(nn.Linear(8, 8), nn.Softmax()), nn.Softmax())

    def found(policy: Policy) -> list[str]:
        graph = record(net.autocast(policy=policy), [X], training=True, dtype="float32")
        return list(types(cast(graph, Precision())).values())
    assert found(Policy()) == [H, H, F, F]
    assert found(Policy(fp32=[Head])) == [H, F, F, F]
    assert found(Policy(fp16=["softmax", nn.Linear])) == [H, H, H, H]
    assert found(Policy(fp32=[nn.Linear])) == [F, F, F, F]
    assert found(Policy(fp16=[Head])) == [F, H, H, F], "a set that is given takes the default's place"
    assert products(Net("scope on", Policy(fp32=["Gemm"])), "16-mixed") == [H, F, H]
    assert products(Net("scope on", Policy(fp16=["Relu"], fp32=["linear"])), "16-mixed") == [H, F, H]


def test_threads_record_decorated_functions_side_by_side() -> None:
    class Deep(Module):
        def __init__(self) -> None:
            self.layers = [Net("decorated") for _ in range(20)]

        def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
            for layer in self.layers:
                layer(x)
            return x
    results: list[list[str]] = []
    threads = [threading.Thread(target=lambda: results.append(products(Deep(), "16-mixed"))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [[H, H, F] * 20] * 4


@pytest.mark.parametrize(("make", "says"), [
    (lambda: Net().autocast(1), "enabled must be true or false, not 1"),
    (lambda: Net().autocast(dtype="float32"), "dtype must be float16 or bfloat16, not 'float32'"),
    (lambda: nn.autocast(policy="none"), "policy must be a tileflow.Policy, not str"),
    (lambda: Policy(fp16=["Cnov"]), "'Cnov' is no operator; name one as ONNX or PyTorch does"),
    (lambda: Policy(fp16=[int]), "'int' is no operator"),
    (lambda: Policy(fp16="Conv"), "fp16 must be a list of operators, not the text 'Conv'"),
    (lambda: Policy(fp16=["matmul"], demote=["Gemm"]), "Gemm is in fp16 and in demote; an operator is in one set"),
    (lambda: Policy(fp16=["Gemm"], demote=["matmul"]), "matmul is in fp16 and in demote; an operator is in one set"),
    (lambda: Policy(fp16=["bmm"], fp32=["bmm"]), "bmm is in fp16 and in fp32; an operator is in one set"),
])
def test_what_is_wrong_is_said(make: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        make()


def test_a_scope_belongs_into_forward() -> None:
    with pytest.raises(TileflowError, match="autocast belongs into a module's forward"), tileflow.autocast():
        pass


# ---- policies

def test_policy_sets() -> None:
    plain = Policy()
    assert {name: plain.rule(name) for names in DEFAULT.values() for name in names} == {n: where for where, names in DEFAULT.items() for n in names}
    assert plain.rule("Relu") == "follow"
    mine = Policy(fp16=["Relu", "conv2d"], fp32=["bmm"])
    assert [mine.rule(n) for n in ("Relu", "Conv", "MatMul", "ConvTranspose", "Softmax", "Concat")] == ["fp16", "fp16", "fp32", "follow", "follow",
                                                                                                       "promote"]
    assert Policy(fp16=["Softmax"], promote=[]).rule("Softmax") == "fp16"
    assert mine == Policy(fp16=[nn.ReLU, "Conv"], fp32=["matmul"])
    assert hash(mine) == hash(Policy(fp16=[nn.ReLU, "Conv"], fp32=["matmul"]))
    assert mine != plain


@pytest.mark.parametrize(("sets", "rule"), [
    ({"fp16": ["matmul"], "fp32": ["bmm"]}, "fp32"), ({"fp16": ["linear"], "promote": ["dot", "bilinear"]}, "fp16"),
    ({"demote": ["mm"], "promote": ["mv"]}, "promote"), ({"fp16": [nn.Linear], "fp32": ["bmm"], "demote": ["mm"]}, "fp32")])
def test_names_of_one_operator_are_merged_with_a_sentence(sets: dict[str, list[Any]], rule: str) -> None:
    with pytest.warns(UserWarning, match=f"are one operator here, MatMul or .* which is in one set: {rule}") as said:
        policy = Policy(**sets)
    assert len(said) == 1
    assert [policy.rule(n) for n in ("MatMul", "Gemm")] == [rule, rule]
    assert repr(Policy([], [], [], ["Relu"])) == "Policy(fp16=[], fp32=[], promote=[], demote=['Relu'])"


def test_tables_name_operators() -> None:
    from tileflow.graph import OPS
    assert not [name for names in (*DEFAULT.values(), *ALIASES.values()) for name in names if name not in OPS]
    assert not [name for name in ALIASES if name in OPS], "an operator's own name needs no alias"
    assert set(DEFAULT) == set(SETS)


def test_torch_functions_and_classes() -> None:
    torch = needs("torch")
    policy = Policy(fp16=[torch.nn.Conv2d, torch.relu], fp32=[torch.bmm, torch.nn.functional.softmax])
    assert [policy.rule(n) for n in ("Conv", "Relu", "MatMul", "Softmax")] == ["fp16", "fp16", "fp32", "fp32"]


# ---- by operator and by pattern

def test_operators_and_patterns() -> None:
    assert products(Net(), "16-mixed", autocast={"b.*": "fp32"}) == [H, F, H]
    assert products(Net(), "16-mixed", autocast={"Gemm": "fp32", "a": "fp16"}) == [H, F, F], "a pattern of a name goes before an operator"
    assert products(Net(), "16-mixed", autocast={"b.*": "off", "linear": "fp32", "[ac]": "fp16"}) == [H, F, H]
    assert products(Net("scope on"), "32", autocast={"b.*": "fp32"}) == [F, F, F]
    for named, says in (({"z*": "fp32"}, "autocast: 'z\\*' is no operator and fits no name of a node; the operators are Gemm, Relu; the names are a, "
                         "b.0, b.1, c"), ({"Conv": "fp32"}, "autocast: the model has no operator Conv; its operators are Gemm, Relu")):
        with pytest.raises(OptionError, match=says):
            products(Net(), "16-mixed", autocast=named)
    with pytest.raises(OptionError, match="autocast has no effect, for nothing is cast: choose the precision 16-mixed"):
        products(Net(), autocast={"Gemm": "fp32"})
    with pytest.raises(OptionError, match="one of fp16, fp32, promote, demote, off"):
        Options(autocast={"Gemm": "half"})


def test_options_in_files_and_on_the_command_line(tmp_path: Any) -> None:
    from tileflow.cli.arguments import options_of
    from tileflow.cli.parser import make_parser
    wanted = Options(precision="16-mixed", autocast={"Softmax": "fp16", "/head/*": "off"})
    wanted.save(tmp_path / "o.toml")
    assert Options.load(tmp_path / "o.toml") == wanted
    for words in (["--options", str(tmp_path / "o.toml")], ["--precision", "16", "--autocast", "Softmax=fp16,/head/*=off"]):
        assert options_of(make_parser().parse_args(["train", "m.onnx", *words])).autocast == wanted.autocast
    assert not options_of(make_parser().parse_args(["compile", "m.onnx", "--no-autocast-enabled"])).autocast_enabled


# ---- numbers

@pytest.mark.parametrize(("mixed", "rtol", "atol"), [paths.rare("16-mixed", 0.02, 2e-3), paths.rare("bf16-mixed", 0.1, 2e-2)])
def test_a_model_trains_in_mixed_precision(mixed: str, rtol: float, atol: float) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((64, 8), np.float32), draw.integers(0, 3, 64)
    losses = {}
    for precision in ("32", mixed):
        nn.manual_seed(1)
        model = tileflow.training_model(nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3)), precision=precision,
                                        micro_batch_size=16, gradient_accumulation=2, device_iterations=2, learning_rate=0.01)
        losses[precision] = [float(model(x, y)[1]) for _ in range(25)]
        assert model(x, y)[0].dtype == np.float32
        assert all(a.dtype == np.float32 for a in model.state_dict().values())
    assert losses["32"] != losses[mixed]
    np.testing.assert_allclose(losses[mixed], losses["32"], rtol=rtol, atol=atol)


@paths.exhaustive
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_digits_converge_in_mixed_precision_as_in_float32(precision: str, tmp_path: Any) -> None:
    """By the flag that most users need, with the loss scale that comes with it; the trained file computes in float32."""
    found = {p: tileflow.train("digits_cnn.onnx", data="digits", precision=p, epochs=3, micro_batch_size=32, learning_rate=2e-3,
                               out=str(tmp_path / p)) for p in ("32", precision)}
    accuracy = {p: result.evaluate()["accuracy"] for p, result in found.items()}
    assert accuracy["32"] > 0.93
    assert abs(accuracy[precision] - accuracy["32"]) < 0.015
    assert all(a.dtype == np.float32 for a in found[precision].weights.values())
    y = tileflow.infer(tmp_path / precision / "model.onnx", data="digits")
    assert np.isfinite(next(iter(y.values())) if isinstance(y, dict) else y).all()
