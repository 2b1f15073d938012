"""A Program lowered for this computer and made an engine: the one place where plan, memory, machine code and addresses
meet."""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..collective import current
from ..executable import store
from ..executable.engine import Engine
from ..graph.collector import seldom
from ..kernels.machine import pool
from ..kernels.machine.warm import compile_all
from ..lower.plan import Plan, make_plan
from ..program.program import Program
from ..state import Part, Session
from . import budget
from .assemble import image_of
from .exchange import Exchanging, compiling
from .host import Host, Progress
from .image_key import image_key
from .segments import declarations_of


def plan_of(program: Program, host: Host) -> Plan:
    """A program lowered for this computer."""
    return make_plan(program, pool.start_threads(host.threads), host.arithmetic, host.detect_anomaly, host.share,
                     host.owner)


def lowered_engine(program: Program, digest: str | None, session: Session, initial: Mapping[str, np.ndarray],
                   host: Host, final: frozenset[str], progress: Progress | None) -> Engine:
    """An engine for an Image that is made now, and kept under the program's digest where that is given; see
    `executable.make_engine`."""
    plan = plan_of(program, host)
    states = declarations_of(plan)
    needs = budget.needs(budget.fixed(plan, final), states, session)
    budget.require(needs, program.training, program.batching.device_iterations)
    session.declare(states, initial)
    shards = plan.shards
    session.divide({s.name: Part(s.input.type.shape, shards.states[s.name], shards.rank)
                    for s in program.states.values() if s.name in shards.states})
    together, group = plan.share or host.owner, current()
    exchange = None if group is None or together is None else Exchanging(group, together, program.batching.replicas)
    image, leaves, hosts = image_of(plan, session, final, exchange)
    if exchange is not None:
        exchange.agree(program, session, host.arithmetic)
    with seldom(), compiling(None if exchange is None else group):
        compile_all(list(leaves.values()), progress)
    if digest is not None and not hosts:
        store.save(image_key(digest, plan.workers, host.arithmetic, final), image)
    return Engine(image, session, [leaves[name].address for name in image.kernels], host.seed, host.detect_anomaly,
                  hosts, None if exchange is None else exchange.group.common,
                  None if exchange is None or not shards.states else exchange.failed)
