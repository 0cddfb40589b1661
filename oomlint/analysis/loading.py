"""Checkpoints: where a file loads them, onto which device, and which names hold their tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass

from oomlint.analysis import cadence, sites
from oomlint.analysis.modules import Function, Module, pairs, written
from oomlint.analysis.nodes import walk
from oomlint.analysis.sites import Site

LOAD = re.compile(r"torch\.(serialization\.)?load")
# What takes in state of a few bytes.
SMALL = re.compile(
    r"sched|scaler|sampler|loader|meter|metric|rng|callback|generator_state|warmup|stopp|logger",
    re.IGNORECASE,
)
BUFFER = re.compile(r"(\w+\.)*BytesIO\(")
# Signs of a run on several devices.
RANKED = re.compile(
    r"torch\.distributed\.(init_process_group|get_rank|barrier)"
    r"|torch\.nn\.parallel\.(distributed\.)?DistributedDataParallel"
    r"|torch\.distributed\.fsdp\.\w+|torch\.multiprocessing\.(spawn|start_processes)"
)
RANK_WORDS = frozenset(
    "local_rank get_rank LOCAL_RANK world_size WORLD_SIZE process_index is_ddp init_process_group"
    " DistributedDataParallel DDP is_main_process global_rank".split()
)
# A file or a branch for one rank alone.
ONE_RANK = re.compile(r"rank|process_index|is_main|is_master|is_primary|local_main", re.IGNORECASE)
# A branch for a run without ranks.
NO_RANKS = re.compile(r"gpu is None|^not [\w.]*(distributed|ddp)", re.IGNORECASE)
ON_HOST = re.compile(r"['\"]cpu['\"]|torch\.device\(['\"]cpu['\"]\)|lambda \w+, \w+: \w+")
MOVES = frozenset(("cuda", "to"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One `torch.load` whose result reaches a `load_state_dict`.

    `name` is what the result is bound to, empty where it is passed on at once; `restores` are
    the calls that take it in, in source order. `place` is the call in whose function that
    happens: the load itself, or the call of a function that gives back what it loads.
    """

    site: Site
    name: str
    restores: tuple[Site, ...]
    place: Site


def checkpoints(module: Module) -> Iterator[Checkpoint]:
    for site in sites.named(module, "load"):
        if not LOAD.fullmatch(site.qualified) or from_memory(module, site):
            continue
        for place in (site, *handed_to(module, site)):
            name = bound_to(module, place)
            restores = tuple(restoring(module, place, name))
            if restores:
                yield Checkpoint(site, name, restores, place)
                break


def handed_to(module: Module, site: Site) -> list[Site]:
    """The calls, in this file, of a function that returns what it loads."""
    function = site.function
    if function is None:
        return []
    name = bound_to(module, site)
    names = spread(scope_nodes(module, function), name) if name else set()
    for node in sites.own_nodes(function.node):
        if isinstance(node, ast.Return) and node.value is not None:
            if site.node in walk(node.value) or mentions(node.value, names):
                return cadence.calls_of(module, function)
    return []


def bound_to(module: Module, site: Site) -> str:
    """The name that the loaded object, or a part of it, is assigned to."""
    statement = module.statement_of(site.node)
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return ""
    value: ast.expr = statement.value
    while value is not site.node:
        if isinstance(value, ast.Subscript | ast.Attribute):
            value = value.value
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func.value
        else:
            return ""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return written(targets[0]) if len(targets) == 1 else ""


def restoring(module: Module, site: Site, name: str) -> Iterator[Site]:
    """Calls of `load_state_dict` in the same scope that are given what was loaded."""
    taints = {name} if name else set()
    if name:
        taints = spread(scope_nodes(module, site.function), name)
    for other in sites.called(module, "load_state_dict"):
        if other.function is not site.function:
            continue
        if (other.node.end_lineno or 0) < site.node.lineno or is_small(other):
            continue
        for argument in [*other.node.args, *(k.value for k in other.node.keywords)]:
            parts = list(walk(argument))
            if site.node in parts or any(written(p) in taints for p in parts if is_name(p)):
                yield other
                break


def is_small(restore: Site) -> bool:
    return restore.receiver is not None and bool(SMALL.search(written(restore.receiver)))


def from_memory(module: Module, site: Site) -> bool:
    """Whether a buffer is read that was written just before."""
    given = site.argument(0, "f")
    if given is None:
        return False
    values = sites.values_of(module, given, site.function)
    return any(BUFFER.match(written(value)) for value in (given, *(v for v, _ in values)))


NAMES = (ast.Name, ast.Attribute)


def is_name(node: ast.AST) -> bool:
    return isinstance(node, NAMES)


def scope_nodes(module: Module, function: Function | None) -> list[ast.AST]:
    return list(sites.own_nodes(module.tree if function is None else function.node))


FRESH = re.compile(r"\{\}|(\w+\.)*(Ordered)?[dD]ict\(\)")


def spread(nodes: list[ast.AST], name: str) -> set[str]:
    """The names whose values were made from a name's value."""
    found = {name}
    fresh = {
        written(node.targets[0])
        for node in nodes
        if isinstance(node, ast.Assign) and FRESH.fullmatch(written(node.value))
    }
    for _ in range(3):
        before = len(found)
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                for target, value in pairs(node.targets[0], node.value):
                    held = target.value if isinstance(target, ast.Subscript) else target
                    known = is_name(target) or written(held) in fresh
                    if known and mentions(value, found):
                        found.add(written(held))
            elif isinstance(node, ast.For) and mentions(node.iter, found):
                found.update(n.id for n in ast.walk(node.target) if isinstance(n, ast.Name))
        if len(found) == before:
            break
    return found


def mentions(node: ast.AST, names: Set[str]) -> bool:
    return any(is_name(part) and written(part) in names for part in walk(node))


def location(site: Site) -> ast.expr | None:
    return site.argument(1, "map_location")


def is_unmapped(site: Site) -> bool:
    """Whether tensors certainly come back to the devices that they were saved from."""
    given = location(site)
    if given is None:
        mapped_to_file = site.argument(-1, "mmap")
        return not site.is_open and mapped_to_file is None
    return isinstance(given, ast.Constant) and given.value is None


def may_be_on_device(module: Module, site: Site) -> bool:
    """Whether what is loaded may lie on a GPU; not where the file says that it is the CPU."""
    given = location(site)
    if given is None:
        return is_unmapped(site)
    if ON_HOST.search(written(given)) or isinstance(given, ast.Lambda):
        return False
    values = sites.values_of(module, given, site.function)
    return not any(ON_HOST.fullmatch(written(value)) for value, _ in values)


def on_every_rank(module: Module, checkpoint: Checkpoint) -> bool:
    """Whether each rank of a distributed run loads a checkpoint, and from the same file."""
    site = checkpoint.site
    given = site.argument(0, "f")
    if given is not None:
        if any(ONE_RANK.search(text) for text in spelled(module, given, site.function, 0)):
            return False
    for place in (site, checkpoint.place):
        tests = sites.conditions_around(module, place.node)
        if any(ONE_RANK.search(written(test)) for test, _ in tests):
            return False
        if any(arm and NO_RANKS.search(written(test)) for test, arm in tests):
            return False
        if left_before(module, place):
            return False
    return is_ranked(module, checkpoint.place.function, 0)


def left_before(module: Module, site: Site) -> bool:
    """`if rank != 0: return` in front of a load: one rank gets there."""
    if site.function is None:
        return False
    return any(
        isinstance(statement, ast.If)
        and statement.lineno < site.node.lineno
        and isinstance(statement.body[-1], ast.Return | ast.Raise)
        and ONE_RANK.search(written(statement.test))
        for statement in site.function.node.body
    )


def spelled(module: Module, node: ast.expr, function: Function | None, depth: int) -> Iterator[str]:
    """The text of an expression and of what its names were assigned."""
    yield written(node)
    if depth < cadence.MAX_CALLS:
        for part in ast.walk(node):
            if isinstance(part, ast.Name | ast.Attribute):
                for value, where in sites.values_of(module, part, function):
                    yield from spelled(module, value, where, depth + 1)


def is_ranked(module: Module, function: Function | None, depth: int) -> bool:
    """Whether a function, the constructor of its class or who calls it knows about ranks."""
    if function is None:
        ranked = (s for s in sites.sites(module) if s.function is None)
        return any(RANKED.fullmatch(s.qualified) for s in ranked)
    if RANK_WORDS & function.words or any(
        argument.arg == "rank" for argument in function.node.args.args
    ):
        return True
    owner = sites.class_of(function)
    maker = owner.methods.get("__init__") if owner is not None else None
    if maker is not None and RANK_WORDS & maker.words:
        return True
    callers = cadence.calls_of(module, function) if depth < cadence.MAX_CALLS else []
    return any(is_ranked(module, caller.function, depth + 1) for caller in callers)


def live_model(module: Module, checkpoint: Checkpoint) -> ast.expr | None:
    """The object that takes in the checkpoint, where it was moved to the device before the load."""
    load = checkpoint.place
    for restore in checkpoint.restores:
        if restore.receiver is None:
            continue
        owner = written(restore.receiver)
        for site in sites.sites(module):
            if not earlier(module, site, load):
                continue
            if site.method not in MOVES or not moves_to_device(site):
                continue
            if concerns(module, site, owner) and not exclusive(module, site.node, load.node):
                return site.node
    return None


def earlier(module: Module, site: Site, load: Site) -> bool:
    """Whether a call precedes a load: above it, or in the constructor of the object."""
    if site.function is load.function:
        return site.node.lineno < load.node.lineno
    owner = sites.class_of(load.function)
    if owner is None or site.function is not owner.methods.get("__init__"):
        return False
    tests = sites.conditions_around(module, site.node)
    return all(cadence.of_device(test) for test, _ in tests)


def exclusive(module: Module, one: ast.AST, other: ast.AST) -> bool:
    """Whether two places are in different arms of one `if`."""
    arms = dict((id(test), arm) for test, arm in sites.conditions_around(module, one))
    around = sites.conditions_around(module, other)
    return any(arms.get(id(test), arm) is not arm for test, arm in around)


def trained_before(module: Module, site: Site) -> bool:
    """Whether the same function trains before a load: then the steps decided the peak already."""
    return any(
        cadence.is_update(other)
        for other in sites.sites(module)
        if other.function is site.function and other.node.lineno < site.node.lineno
    )


def moves_to_device(site: Site) -> bool:
    if site.method == "cuda":
        return True
    given = site.argument(0, "device")
    return (
        given is not None
        and re.search(r"device|cuda|gpu|rank", written(given)) is not None
        and not ON_HOST.search(written(given))
    )


def concerns(module: Module, site: Site, owner: str) -> bool:
    """Whether a move is of the named object, or its result is bound to that name."""
    if site.receiver is not None and written(site.receiver) == owner:
        return True
    statement = module.statement_of(site.node)
    return (
        isinstance(statement, ast.Assign)
        and any(written(target) == owner for target in statement.targets)
        and statement.value is site.node
    )
