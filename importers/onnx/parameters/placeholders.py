"""What PyTorch's exporter (torch.export) wrote down about parameters: each node's metadata hold the call it was made from, and in its arguments
`%p_encoder_fc_weight` is a parameter, `%b_…` a buffer, `%c_…` a constant of the code, anything else a result."""
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from onnx import NodeProto

from tileflow.graph import DATA, START, TRAINED

from .origins import Origins
from .scopes import flattened, metadata, parent
from .uses import UNIT, Use

CALL = "pkg.torch.onnx.fx_node"
ARGUMENT = re.compile(r"%((?:p|b|c)_\w+)")
GIVEN_OR_NOT = re.compile(r"%((?:p|b|c)_\w+)|\bNone\b")
TARGET = re.compile(r"target=torch\.ops\.(?:aten\.)?(\w+)")
BIAS_FIRST = ("addmm", "baddbmm", "addmv", "addbmm")
"""Calls whose bias is their first argument; all others take it last."""
VALUE = re.compile(r"%(\w+)")
"""A value in a call's arguments."""
LONGEST = 1 << 14
"""Characters of a call that are read."""
RECURRENT = ("LSTM", "GRU", "RNN")
"""Operators that read the parameters of a layer, in all its directions, in three tensors: weights of inputs, weights of states, biases."""
RESULT = ""
"""The operand of a call that is no parameter, buffer or constant of the code: the exporter computed it, or made it up."""

Key = tuple[int, int]


def call_of(node: NodeProto) -> str | None:
    """The call that a node was made from."""
    call = metadata(node, CALL)
    return None if call is None else call[:LONGEST]


def from_placeholder(placeholder: str, module: str, tensor: str) -> str:
    """'p_encoder_layer_1_fc_bias' read in the module encoder.layer.1.fc -> 'encoder.layer.1.fc.bias'."""
    flat = placeholder[2:]
    while module and not flat.startswith(f"{flattened(module)}_"):
        module = parent(module)
    rest = flat[len(module) + 1:] if module else flat
    tails = (".".join(str(tensor).split(".")[-n:]) for n in (1, 2, 3))
    rest = next((tail for tail in tails if flattened(tail) == rest), rest)
    return f"{module}.{rest}" if module else rest


class Placeholders:
    """What the calls say about the stored operands of the file's nodes.

    known: all parameters that calls take. given: (place of the node, operand) -> 'p_…', 'b_…', 'c_…', or RESULT; nothing where there are no metadata.
    cloned: the parameters, buffers and constants that an Identity reads by their own names, whoever reads what comes of it.
    stacked: parameters of recurrent layers, of which a tensor holds several.
    lost: the parameters that calls take and no node reads, each with a node of such a call: the exporter dropped or folded them.
    """

    def __init__(self, uses: Iterable[Use], inputs: Iterable[str], nodes: Iterable[NodeProto], origins: Origins) -> None:
        """inputs: names of the graph's inputs, which look like placeholders by accident. nodes: those that have metadata."""
        self.given: dict[Key, str] = {}
        self._origins = origins
        self._inputs = set(inputs)
        self.stacked: set[str] = set()
        groups: dict[str, list[Use]] = defaultdict(list)
        for use in uses:
            call = call_of(use.node)
            if call is not None and use.place is not None and use.role != UNIT:
                groups[call].append(use)
        for call, members in groups.items():
            self._results(members, call)
            self._match(sorted(members, key=lambda u: (u.place or 0, u.index)), self.arguments(call))
        calls = {call_of(node) or "": node for node in nodes}
        self.cloned = frozenset(given for call, node in calls.items() if node.op_type == "Identity" and node.input
                                for given in self.arguments(call) if given[2:] == flattened(node.input[0]))
        found = {*self.given.values(), *self.stacked, *self.cloned}
        wanted = {a: node for call, node in calls.items() for a in self.arguments(call) if a.startswith("p_")}
        self.known = frozenset(wanted)
        self.lost = {name: node for name, node in wanted.items() if name not in found}

    def restore(self, name: str, use: Use) -> None:
        """A lost parameter is read again."""
        self.lost.pop(name, None)
        self.given[(use.place or 0, use.index)] = name

    def called(self, placeholder: str, module: str | None, tensor: str) -> str:
        """The parameter's name: as the network's signature has it, else by the module that reads it, in place of `tensor`."""
        return self._origins.parameters.get(placeholder) or from_placeholder(placeholder, module or "", tensor)

    def arguments(self, call: str) -> list[str]:
        """The placeholders of a call, weights before biases."""
        target = TARGET.search(call)
        pattern = GIVEN_OR_NOT if target is not None and target[1] == "group_norm" else ARGUMENT       # its file has both, given or not
        found = [a for a in pattern.findall(call.partition("](")[2]) if a not in self._inputs]
        return found[1:] + found[:1] if target is not None and target[1] in BIAS_FIRST and len(found) > 1 else found

    def _results(self, uses: Iterable[Use], call: str) -> None:
        """Operands that are results by their names in the call: the exporter computed what another call had computed before."""
        values = VALUE.findall(call.partition("](")[2])
        for use in uses:
            if use.name in values and not use.name.startswith(("p_", "b_", "c_")):
                self.given[use.place or 0, use.index] = RESULT

    def _match(self, uses: Sequence[Use], arguments: Sequence[str]) -> None:
        """Give each operand of one call its argument: by name, then trained roles in order, then others in order; numbers and first states
        by name only."""
        self._match_layers(uses, arguments)
        left = dict.fromkeys(arguments)
        by_name = {a[2:]: a for a in left}
        matched: dict[str, str] = {}
        for stage in (lambda u: flattened(u.name) in by_name, lambda u: u.role in TRAINED, lambda u: u.role not in (START, DATA),
                      lambda u: bool(u.dims) and u.role != START):
            for use in uses:
                key = (use.place or 0, use.index)
                if key in self.given or not stage(use):
                    continue
                argument = by_name.get(flattened(use.name)) or next((a for a in left if self._may_be(use, a)), matched.get(use.name, RESULT))
                self.given[key] = matched[use.name] = argument
                left.pop(argument, None)
        for use in uses:
            self.given.setdefault((use.place or 0, use.index), RESULT)

    def _may_be(self, use: Use, argument: str) -> bool:
        """What the exporter computed from no parameter is none."""
        return self._origins.computed.get(use.name) != () or not argument.startswith("p_")

    def _match_layers(self, uses: Sequence[Use], arguments: Sequence[str]) -> None:
        """A call of recurrent layers lists, for each layer and each direction, two weights and two biases, or the weights alone; the stored tensors
        hold those of a layer, so that each is given the first that it holds, and the others are not lost."""
        layers = [use for use in uses if use.node.op_type in RECURRENT and use.index == 1 and use.dims]
        each, at = 4 if any(len(use.node.input) > 3 and use.node.input[3] for use in layers) else 2, 0
        if not layers or each * sum(use.dims[0] for use in layers) != len(arguments):
            return
        for layer in layers:
            for use in uses:
                if use.place == layer.place and 1 <= use.index <= min(each, 3):
                    self.given[use.place or 0, use.index] = arguments[at + use.index - 1]
            at += each * layer.dims[0]
        self.stacked.update(arguments)
