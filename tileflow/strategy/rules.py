"""What stages must obey: sentences of the reference system (PopTorch, PopART) where they do not."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph import Graph, Node
from ..program.batching import Batching
from ..program.staging import Liveness, Staging, Strategy
from ..system.errors import OptionError

MOST_IPUS = 64
"""IPUs that one process may have."""


def counted_stages(ipus: Sequence[int]) -> int:
    """Forward stages as the reference counts them: by changes of the IPU, which is 0 before the first."""
    found, last = 1, 0
    for ipu in ipus:
        found, last = found + (ipu != last), ipu
    return found


def check_depth(staging: Staging, batching: Batching, training: bool) -> None:
    """OptionError where a pipeline has fewer micro-batches than stages."""
    forward = counted_stages(staging.ipus)
    stages = 2 * forward - 1
    if training and staging.pipeline_schedule == "1f1b":
        if batching.gradient_accumulation < forward:
            raise OptionError(f"gradient_accumulation must be greater than or equal to the number of pipeline stages ({forward}) with the "
                              f"pipeline_schedule 1f1b; it is {batching.gradient_accumulation}.")
        return
    if training and batching.gradient_accumulation < stages:
        raise OptionError(f"gradient_accumulation must be greater than or equal to the number of pipeline stages ({stages}) when using "
                          f"PipelinedExecution. Please note that a model with {forward} pipeline stages will have an additional {forward - 1} "
                          f"stages when training; it is {batching.gradient_accumulation}.")
    if not training and batching.device_iterations < forward:
        raise OptionError(f"device_iterations must be greater than or equal to the number of pipeline stages ({forward}) when using "
                          f"PipelinedExecution; it is {batching.device_iterations}.")


def ipus_for(ipus: Sequence[int], replicas: int = 1, rounded: bool = False) -> int:
    """How many IPUs a model reserves.

    Raises:
        OptionError: more than a process may have, or no power of two.
    """
    wanted = max(len(set(ipus)), max(ipus, default=-1) + 1) * replicas
    if wanted > MOST_IPUS:
        raise OptionError(f"Too many IPUs requested ({wanted}). Experiments that need more than {MOST_IPUS} IPUs require distributed execution.")
    held = reserved(wanted)
    if held != wanted and not rounded:
        raise OptionError(f"The model specifies the use of {wanted} IPUs, however a minimum of {held} must be reserved in order to allow the "
                          "model to run, because a power of 2 or maximum of 64 IPUs must be reserved per process. Please reconfigure your model to "
                          "use a different number of IPUs or set auto_round_num_ipus=True.")
    return held


def reserved(ipus: int) -> int:
    """The power of two that so many IPUs take."""
    return 1 << (ipus - 1).bit_length()


PARALLEL_LIVENESS = ("always_live", "off_chip_after_fwd")
"""What phases on two groups of IPUs in turn can do with their tensors."""


def check_liveness(strategy: Strategy, liveness: Liveness) -> None:
    """OptionError where phases that alternate between IPUs should let tensors leave the chip as only those of one IPU can."""
    if strategy == "parallel_phased" and liveness not in PARALLEL_LIVENESS:
        raise OptionError(f"tensors_liveness {liveness}: This is only supported for serial phase execution")


def require_parity(ipus: Sequence[int], phases: Sequence[int]) -> None:
    """OptionError where a stage of a phase is on the wrong IPU of the two groups."""
    if any(ipu % 2 != phase % 2 for ipu, phase in zip(ipus, phases, strict=True)):
        raise OptionError("When phases are executed in parallel: even phases must run on even IPUs and odd phases on odd IPUs")


def check_flow(graph: Graph, stages: Mapping[Node, int]) -> None:
    """OptionError where a node reads what a later stage makes."""
    made = {v: node for node in graph.nodes for v in node.outputs}
    for node in graph.nodes:
        for v in node.operands:
            if v in made and stages[made[v]] > stages[node]:
                raise OptionError(f"{node.op.name} ({node.origin}) of stage {stages[node]} reads what {made[v].op.name} ({made[v].origin}) of stage "
                                  f"{stages[made[v]]} makes; graph data flow must follow increasing stage order.")


def check_shared(graph: Graph, stages: Mapping[Node, int], staging: Staging) -> None:
    """OptionError where stages on different IPUs read one weight."""
    states = {s.input: s.name for s in graph.states if s.kind in ("parameter", "buffer")}
    where: dict[str, set[int]] = {}
    for node in graph.nodes:
        for v in node.operands:
            if v in states:
                where.setdefault(states[v], set()).add(staging.ipus[stages[node]])
    for name, ipus in where.items():
        if len(ipus) > 1:
            raise OptionError(f"Can not copy variable tensor {name} between virtual graphs when pipelining. All pipeline stages using this tensor "
                              f"should be on the same graph; it is read on the IPUs {', '.join(map(str, sorted(ipus)))}.")
