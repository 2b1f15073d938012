"""What is trained: one table of rules, asked in order; the first that knows decides, and says why.

Where an operator declares what its operand is for (a product's weight, an embedding's table), that decides. Plain arithmetic is the doubtful class:
a bias, a layer's scale and a position embedding are parameters, an attention's scale, a mask and a rotary table are constants, and all are operands
of Add and Mul. There PyTorch's metadata decide, then contents, names and neighbours; what is still doubtful is said.
"""
from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from onnx import NodeProto

from tileflow.graph import DATA, MOVED, OPS, START, STATISTIC, TRAINED

from ..checker import schema_of
from ..model import OnnxModel
from .placeholders import RESULT, TARGET, call_of
from .scopes import flattened, is_made_up, last_word
from .stored import by_cast
from .ties import Ties
from .uses import UNIT, Use, declared_role, most_important

VERY_NEGATIVE = -9999.0
"""What masks add to scores that shall not count: at most this."""
BUFFERS = {"inv_freq", "freqs", "freqs_cis", "cos", "sin", "cos_cached", "sin_cached", "mask", "attn_mask", "attention_mask", "causal_mask",
           "mean", "std", "pixel_mean", "pixel_std", "running_mean", "running_var", "anchors", "grid", "pe"}
"""The last word of names that modules give tensors which are not trained."""
CREATED = re.compile(r"val_\d|zeros|ones|full|where|masked_fill|arange|empty|scalar_tensor|linspace|eye|.*\.constant")
"""Names of results that are made of no parameter."""
CALLED_CONSTANT = re.compile(r"const|/[xy](:\d+)?$", re.IGNORECASE)
"""In names of tensors: TensorFlow's converters write const_fold_opt__12 and mul/y."""
QUANTISED = re.compile("[Qq]uantize|QLinear|QGemm|QAttention|MatMulInteger|MatMulNBits")
"""In names of operators over numbers that bytes stand for."""
LIMITS = ("Max", "Min", "Pow", "Mod", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
COMPUTED = "the exporter computed it, perhaps from parameters"
FROM = "the exporter computed it from "
"""Begins the doubt that names the parameters."""
SPECTRAL = re.compile(r"(?P<base>.+)_[uv]|(?P<parametrized>.*\bparametrizations\.\w+)\.\d+\._[uv]")
"""Names of the two vectors of spectral normalisation, by the older and by the newer function of PyTorch's."""
KEEPS_NAMES = ("Gemm", "Conv", "ConvTranspose")
"""Operators whose weight PyTorch's older exporter reads under the parameter's own name, unless it computed it."""
LENGTH = 1e-5
"""How far the squared length of normalised rows may be from 1, and from being at right angles the product of two."""
LOOKED_AT = 64
"""Rows of a matrix whose lengths and angles are looked at."""
LOOKED_BEHIND = 4
"""Operators that only move elements between a product and the Add of its bias."""


@dataclass(frozen=True)
class Verdict:
    """What becomes of a stored tensor, and why, in a phrase; `doubt`: why it could be otherwise."""

    kind: Literal["parameter", "buffer", "constant"]
    why: str
    doubt: str = ""


class Facts:
    """What is known of one stored tensor."""

    def __init__(self, model: OnnxModel, ties: Ties, name: str, makers: Mapping[str, NodeProto], weights_in_nodes: bool = False) -> None:
        self.model, self.ties, self.name, self._makers, self.weights_in_nodes = model, ties, name, makers, weights_in_nodes
        self.uses = ties.uses.get(name, ())
        self.tensor = model.tensors[name]
        self.size = math.prod(self.tensor.dims)
        self.role = most_important([use.role for use in self.uses])
        self.given = {given for use in self.uses if (given := self.given_to(use)) is not None}
        self.made_up = is_made_up(name)

    def given_to(self, use: Use) -> str | None:
        """What PyTorch's call gave to this operand."""
        return None if use.place is None else self.ties.evidence.placeholders.given.get((use.place, use.index))

    def is_attribute(self, use: Use) -> bool:
        """The operator of ours holds this operand of ONNX's as an attribute."""
        schema = schema_of(use.node, self.model.opset.get("", 0))
        op: Any = OPS.get(use.node.op_type)
        if schema is None or op is None or use.index >= len(schema.inputs):
            return False
        return any(f.name == schema.inputs[use.index].name for f in dataclasses.fields(op))

    @cached_property
    def sources(self) -> tuple[str, ...] | None:
        """The parameters that the exporter computed the tensor from; None: the file does not say."""
        return self.ties.evidence.origins.computed.get(self.ties.tensor(self.name))

    @cached_property
    def doubt(self) -> str:
        """Why a tensor that holds the exporter's results could be otherwise: it was computed from parameters, surely or perhaps."""
        return COMPUTED if self.sources is None else f"{FROM}{', '.join(self.sources)}" if self.sources else ""

    @cached_property
    def is_repeated(self) -> bool:
        """A parameter of instance normalisation with running statistics, once for each row of the batch."""
        return self.first.node.op_type == "BatchNormalization" and self.call == "instance_norm"

    @cached_property
    def is_normalised(self) -> bool:
        """Rows of the length 1, as stored or transposed, that are not at right angles, as fresh orthogonal matrices' are."""
        if len(self.tensor.dims) != 2 or min(self.tensor.dims) < 2:
            return False
        return any(_is_normalised(rows[:LOOKED_AT].astype(np.float64)) for rows in (self.array, self.array.T))

    @cached_property
    def array(self) -> np.ndarray:
        return self.model.array(self.name)

    @cached_property
    def first(self) -> Use:
        """A use in the role that decides."""
        return next(use for use in self.uses if use.role == self.role)

    @cached_property
    def is_mask(self) -> bool:
        """Zeros, or ones, and what blocks; or zeros and ones."""
        if self.size < 2:
            return False
        low = self.array <= VERY_NEGATIVE
        rest = self.array[~low]
        return bool(low.any() and np.all(rest == 0)) or bool((rest == 0).any() and (rest == 1).any() and np.all((rest == 0) | (rest == 1)))

    @cached_property
    def looks_trained(self) -> bool:
        """Many different numbers: no mask, no constant that is spread."""
        return self.size > 1 and not self.is_mask and not self.ties.evidence.is_filled(self.ties.tensor(self.name))

    @cached_property
    def call(self) -> str:
        """'aten.gelu': the call of PyTorch that the reader was made from."""
        found = TARGET.search(call_of(self.first.node) or "")
        return found[1] if found else self.first.node.op_type

    @cached_property
    def per_channel(self) -> bool:
        """One number per channel, as biases and scales are."""
        return sum(n > 1 for n in self.tensor.dims) <= 1

    @cached_property
    def product(self) -> str | None:
        """The operator whose result this tensor is added to, if that is the product with a stored weight."""
        use = self.first
        if use.node.op_type != "Add" or len(use.node.input) != 2:
            return None
        maker = self._makers.get(self._origin(use.node.input[1 - use.index]))
        roles = OPS[maker.op_type].roles if maker is not None and maker.op_type in OPS else ()
        if maker is None or "weight" not in roles or self._origin(maker.input[roles.index("weight")]) not in self.model.tensors:
            return None
        return maker.op_type

    def dequantises(self, node: NodeProto) -> bool:
        """The node multiplies stored integers, cast to floats, by this tensor."""
        return by_cast(self.model, self._makers, node) is not None

    def _origin(self, name: str) -> str:
        """The value whose elements `name` holds, behind a few operators that only move them."""
        for _ in range(LOOKED_BEHIND):
            maker = self._makers.get(name)
            if maker is None or not maker.input or declared_role(maker, 0, self.model.opset) != MOVED:
                break
            name = maker.input[0]
        return name


def _is_normalised(rows: np.ndarray) -> bool:
    angles = rows @ rows.T - np.eye(len(rows))
    return bool(np.abs(angles.diagonal()).max() < LENGTH < np.abs(angles).max())


Rule = Callable[[Facts], Verdict | None]


def the_file_says(f: Facts) -> Verdict | None:
    told = f.ties.evidence.told
    if told is None:
        return None
    kind = told.get(f.name)
    return Verdict("constant", "no parameter of the network") if kind is None else Verdict(kind, f"the network's {kind}")


def statistics(f: Facts) -> Verdict | None:
    return Verdict("buffer", f"running statistics of {f.first.node.op_type}") if f.role == STATISTIC else None


def units(f: Facts) -> Verdict | None:
    """A norm's ones and zeros, of groups or, where its call has no parameter there, of channels."""
    channels = f.role in TRAINED and f.given == {RESULT} and declared_role(f.first.node, f.first.index, f.model.opset) == DATA
    unit = f.role == UNIT or (channels and bool((f.array == (f.role == "scale")).all()))
    return Verdict("constant", "ones or zeros by which a normalisation changes nothing") if unit else None


def constant_nodes(f: Facts) -> Verdict | None:
    if f.name in f.model.initializers:
        return None
    if f.weights_in_nodes and (verdict := declared_by_the_operator(f) or bias_of_a_product(f)) is not None:
        return verdict
    stored = f.role in TRAINED and f.looks_trained and not f.ties.evidence.by_pytorch
    return Verdict("constant", "in a Constant node", f"as the {f.role} of {f.first.node.op_type} it may be a parameter" if stored else "")


def pytorch_says(f: Facts) -> Verdict | None:
    own = f"p_{flattened(f.name)}"
    evidence = f.ties.evidence.placeholders
    if own in f.given or (f.given <= {RESULT} and own in (evidence.cloned if f.given else evidence.known)):
        return Verdict("parameter", f"PyTorch's parameter, in {f.call}")
    placeholder = next((given for given in f.given if given.startswith("p_")), None)
    if placeholder is not None:
        use = next(use for use in f.uses if f.given_to(use) == placeholder)
        called = evidence.called(placeholder, f.ties.evidence.scopes.module(use.node), f.name)
        return Verdict("parameter", f"PyTorch's parameter {called}, in {f.call}")
    if (f.given and all(given != RESULT for given in f.given)) or not evidence.cloned.isdisjoint({f"b{own[1:]}", f"c{own[1:]}"}):
        return Verdict("constant", f"PyTorch's buffer or constant in {f.call}")
    return None


def computed_from_parameters(f: Facts) -> Verdict | None:
    """What stands in a weight's place, and is none: trained, and said."""
    if f.role not in TRAINED:
        return None
    if not f.doubt:
        return Verdict("constant", "computed from no parameter of the network") if f.given == {RESULT} else None
    evidence = f.ties.evidence
    result = bool(f.sources) or bool(evidence.placeholders.known)
    unnamed = evidence.by_torchscript and f.made_up and f.first.node.op_type in KEEPS_NAMES and f.role == "weight" and not _has_folded_bias(f)
    normalised = not evidence.placeholders.known and f.made_up and f.role == "weight" and f.is_normalised
    told = unnamed or normalised or f.ties.tensor(f.name) in evidence.computed or (result and f.given == {RESULT})
    declared = declared_role(f.first.node, f.first.index, f.model.opset)
    if f.is_repeated or (declared in (*TRAINED, MOVED) and told and f.looks_trained):
        return Verdict("parameter", f"the {f.role} of {f.first.node.op_type}", f.doubt)
    return None


def _has_folded_bias(f: Facts) -> bool:
    """The bias is a result, too: a batch normalisation was folded into both (`folded.py`)."""
    inputs = f.first.node.input
    return len(inputs) > 2 and is_made_up(inputs[2])


def spectral_vectors(f: Facts) -> Verdict | None:
    """What spectral normalisation keeps beside its weight."""
    found = SPECTRAL.fullmatch(str(f.name))
    weight = found and (f"{found['base']}_orig" if found["base"] else f"{found['parametrized']}.original")
    return Verdict("constant", f"a vector by which '{weight}' is normalised") if weight in f.model.initializers else None


def called_like_a_buffer(f: Facts) -> Verdict | None:
    if last_word(f.name) not in BUFFERS:
        return None
    return Verdict("constant", "called like a buffer", "a parameter of that name is possible")


def frozen_norms(f: Facts) -> Verdict | None:
    """A batch normalisation by running statistics, written in plain arithmetic: torchvision's and others for detectors hold buffers only."""
    word = last_word(f.name)
    statistics = (f"{str(f.name).removesuffix(word)}{statistic}" for statistic in ("running_mean", "running_var"))
    if f.role != DATA or word not in ("weight", "bias") or not all(name in f.model.initializers for name in statistics):
        return None
    return Verdict("constant", "of a batch normalisation that computes with its running statistics, as frozen ones do", "parameters are possible")


def declared_by_the_operator(f: Facts) -> Verdict | None:
    if f.role not in TRAINED:
        return None
    declared = declared_role(f.first.node, f.first.index, f.model.opset)
    if declared == DATA:
        return Verdict("parameter", f"the {f.role} of a normalisation of groups, in {f.first.node.op_type}")
    if declared == MOVED and f.size == 1 and f.made_up:                      # one number that is spread
        return None
    return Verdict("parameter", f"the {f.role} {'behind' if declared == MOVED else 'of'} {f.first.node.op_type}")


def bias_of_a_product(f: Facts) -> Verdict | None:
    return Verdict("parameter", f"the bias of {f.product}") if f.per_channel and f.tensor.dims and RESULT not in f.given and f.product else None


def named_by_a_module(f: Facts) -> Verdict | None:
    evidence = f.ties.evidence
    in_module = evidence.by_torchscript or (evidence.by_pytorch and not f.given and "." in str(f.name))
    return Verdict("parameter", "a tensor of the module by its name") if in_module and not f.made_up else None


def held_as_attributes(f: Facts) -> Verdict | None:
    """What every reader wants to know before it runs: Resize's scales."""
    return Verdict("constant", f"an attribute of {f.first.node.op_type}") if all(map(f.is_attribute, f.uses)) else None


def scales_of_bytes(f: Facts) -> Verdict | None:
    """What says how large the numbers are that bytes stand for: the bytes are not trained, and a network of scales alone is nobody's wish."""
    if f.uses and all(f.dequantises(use.node) for use in f.uses):
        return Verdict("constant", f"a scale of numbers that are stored as integers, in {f.first.node.op_type}")
    if not all(QUANTISED.search(use.node.op_type) and use.index > 0 for use in f.uses):
        return None
    return Verdict("constant", f"a scale of quantised numbers, in {f.first.node.op_type}")


def computed_by_the_exporter(f: Facts) -> Verdict | None:
    if not f.ties.evidence.placeholders.known or not f.given <= {RESULT}:
        return None
    doubtful = f.sources is not None or f.looks_trained or not CREATED.match(str(f.name))
    return Verdict("constant", f"no parameter of {f.call}", f.doubt if doubtful else "")


def masks(f: Facts) -> Verdict | None:
    return Verdict("constant", "a mask by its elements") if f.role == DATA and f.is_mask else None


def single_numbers(f: Facts) -> Verdict | None:
    if f.size != 1:
        return None
    doubtful = f.tensor.dims and not f.made_up and not CALLED_CONSTANT.search(str(f.name))
    return Verdict("constant", f"one number in {f.first.node.op_type}", "a parameter of one number is possible" if doubtful else "")


def first_states(f: Facts) -> Verdict | None:
    if f.role != START:
        return None
    return Verdict("constant", f"the first state of {f.first.node.op_type}", "a trained first state is possible" if f.looks_trained else "")


def limits(f: Facts) -> Verdict | None:
    if f.first.node.op_type not in LIMITS:
        return None
    return Verdict("constant", f"what {f.first.node.op_type} compares or raises with", "a parameter there is possible" if f.looks_trained else "")


def numbered_by_the_exporter(f: Facts) -> Verdict | None:
    if not f.made_up:
        return None
    return Verdict("constant", "named by the exporter, not by a module", COMPUTED if f.size > 1 else "")


def one_number_per_channel(f: Facts) -> Verdict | None:
    return Verdict("parameter", f"a number per channel in {f.first.node.op_type}") if f.per_channel else None


def other_arithmetic(f: Facts) -> Verdict | None:
    return Verdict("parameter", f"an operand of {f.first.node.op_type}", "nothing tells it from a constant")


RULES: tuple[Rule, ...] = (
    the_file_says, statistics, units, constant_nodes, spectral_vectors, computed_from_parameters, pytorch_says, masks,
    called_like_a_buffer, frozen_norms, declared_by_the_operator, bias_of_a_product,
    scales_of_bytes, named_by_a_module, held_as_attributes, computed_by_the_exporter, first_states, single_numbers,
    limits, numbered_by_the_exporter, one_number_per_channel, other_arithmetic)


def verdicts(model: OnnxModel, ties: Ties) -> dict[str, Verdict]:
    """What becomes of every floating tensor that a node reads, by its name; and of others that the file calls buffers.

    Constant nodes hold constants, but for files none of whose initializers is a weight: there exporters (Paddle's) keep the weights in them.
    """
    makers = {output: node for node in ties.nodes for output in node.output}
    weights_in_nodes = not any(use.role in TRAINED for name in model.initializers for use in ties.uses.get(name, ()))
    result = {}
    for name, uses in ties.uses.items():
        if uses and name not in ties.views:
            facts = Facts(model, ties, name, makers, weights_in_nodes)
            result[name] = next(verdict for rule in RULES if (verdict := rule(facts)) is not None)
    told = {name: Verdict(kind, f"the network's {kind}")
            for name, kind in (ties.evidence.told or {}).items() if kind == "buffer"}
    return told | result
