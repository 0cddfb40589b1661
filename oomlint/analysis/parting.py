"""Which training loaders part their samples among the ranks, and tell their sampler the epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomlint.analysis import edits, loaders, loading, origins, sites, synchronisation
from oomlint.analysis.answers import make_fix
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site
from oomlint.analysis.synchronisation import DDP, FSDP
from oomlint.rule import Edit, Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model


LOADER = re.compile(r"torch\.utils\.data\.(dataloader\.)?DataLoader")

SAMPLER = re.compile(r"torch\.utils\.data\.(distributed\.)?DistributedSampler")

POSITIONS = {"shuffle": 2, "sampler": 3, "batch_sampler": 4}

# A dataset that somebody has parted already, or that does so itself.
PARTED = re.compile(
    r"rank|world|shard|split_|partition|distribut|replica|worker|iterable|stream|webdataset|chunk",
    re.IGNORECASE,
)

SEEDED = re.compile(r"seed\w*\([^)\n]*rank", re.IGNORECASE)

MAPPED = re.compile(
    r"torch\.utils\.data\.(dataset\.)?(TensorDataset|Subset)|torchvision\.datasets\.\w+"
)


def training_loops(module: Module) -> Iterator[tuple[ast.For, Function | None]]:
    """Innermost loops in which backward and step run for their elements."""
    for loop in module.index.by_kind.get(ast.For, ()):
        if not isinstance(loop, ast.For):
            continue
        function = module.function_of(loop)
        if not trains(module, loop, function):
            continue
        inner = [n for n in ast.walk(loop) if isinstance(n, ast.For) and n is not loop]
        inner = [one for one in inner if loaders_of(module, one, function)]
        if not any(trains(module, one, function) for one in inner):
            yield loop, function


def trains(module: Module, loop: ast.For, function: Function | None) -> bool:
    inside = list(sites.found_in(module, loop, function))
    return all(any(does(module, site, word) for site in inside) for word in ("backward", "step"))


def does(module: Module, site: Site, word: str) -> bool:
    """Whether a call is one of this method, or of a function of this file that has such a one."""
    if site.method == word:
        return True
    called = synchronisation.callee(module, site.node, site.function)
    return called is not None and word in called.words


def loaders_of(module: Module, loop: ast.For, function: Function | None) -> list[Site]:
    """The loaders that a loop may go over; none where it may be something else."""
    over = origins.gone_over(module, loop.iter, function)
    found = origins.origins(module, over, function) or []
    made = [sites.site_of(module, v, where) for v, where in found if isinstance(v, ast.Call)]
    if len(made) < len(found) or not all(LOADER.fullmatch(site.qualified) for site in made):
        return []
    return made


def sampler_of(module: Module, loader: Site) -> Site | None:
    """The DistributedSampler that a loader is given wherever there are ranks."""
    given = loader.argument(POSITIONS["sampler"], "sampler")
    found = origins.origins(module, given, loader.function) if given is not None else None
    made = [sites.site_of(module, v, f) for v, f in found or [] if isinstance(v, ast.Call)]
    return next((site for site in made if SAMPLER.fullmatch(site.qualified)), None)


def has_none(loader: Site) -> bool:
    if loader.is_open or loader.argument(0, "dataset") is None:
        return False
    shuffle = loader.argument(POSITIONS["shuffle"], "shuffle")
    if shuffle is not None and "sampler" in written(shuffle):
        return False
    return not any(loader.argument(POSITIONS[k], k) for k in ("sampler", "batch_sampler"))


def is_unparted(model: Model, loader: Site) -> bool:
    """Whether every rank has a loader over the same samples."""
    module = model.module
    if not wraps(module) or SEEDED.search(module.source.text):
        return False
    dataset = loader.argument(0, "dataset")
    if dataset is None:
        return False
    found = origins.origins(module, dataset, loader.function) or []
    for value, where in [(dataset, loader.function), *found]:
        if any(PARTED.search(text) for text in loading.spelled(module, value, where, 0)):
            return False
    shuffle = loader.argument(POSITIONS["shuffle"], "shuffle")
    if sites.is_true(shuffle):
        return True  # torch refuses to shuffle what is iterable
    cls = loaders.dataset_class(model.project, module, dataset, loader.function)
    if cls is not None:
        return "__getitem__" in cls.methods
    names = (sites.qualified_name(module, v.func, f) for v, f in found if isinstance(v, ast.Call))
    return bool(found) and all(MAPPED.fullmatch(name) for name in names)


def wraps(module: Module) -> list[Site]:
    """Every place where a model gets ranks that train it together."""
    return [
        site
        for site in sites.named(module, "DistributedDataParallel", "FullyShardedDataParallel")
        if DDP.fullmatch(site.qualified) or FSDP.fullmatch(site.qualified)
    ]


def is_always_parallel(module: Module) -> bool:
    always = synchronisation.Wrapped.ALWAYS
    return all(synchronisation.combined(module, s.node, always) is always for s in wraps(module))


Epochs = tuple[ast.For | ast.AsyncFor | ast.While, ast.expr]


def epochs_around(module: Module, loop: ast.For, function: Function | None) -> Epochs | None:
    """The loop that runs the training loop again, with how the loader is written in it."""
    over = origins.gone_over(module, loop.iter, function)
    around = sites.loops_around(module, loop)
    if around:
        return around[0], over
    if function is None or not isinstance(over, ast.Name | ast.Attribute):
        return None
    arguments = function.node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    for call in synchronisation.calls_of(module, function):
        around = sites.loops_around(module, call.node)
        if not around:
            continue
        if isinstance(over, ast.Attribute):
            return around[0], over
        position = names.index(over.id) - (function.owner is not None) if over.id in names else -1
        given = call.argument(position, over.id)
        return (around[0], given) if given is not None else None
    return None


def is_never_told(module: Module, sampler: Site, loop: ast.For, function: Function | None) -> bool:
    if "set_epoch" in module.source.text or sampler.is_open:
        return False
    seed = sampler.argument(4, "seed")
    if seed is not None and "epoch" in written(seed):
        return False
    shuffle = sampler.argument(3, "shuffle")
    mixed = shuffle is None or sites.is_true(shuffle)
    return mixed and epochs_around(module, loop, function) is not None


def tell_epoch(
    module: Module, loader: Site, loop: ast.For, function: Function | None
) -> Fix | None:
    given = loader.argument(POSITIONS["sampler"], "sampler")
    found = origins.origins(module, given, loader.function) if given is not None else None
    edit = setting(module, loop, function)
    if edit is None or not found or len(found) > 1:
        return None
    return make_fix("Tell the sampler the epoch", [edit], Safety.UNSAFE)


def setting(module: Module, loop: ast.For, function: Function | None) -> Edit | None:
    """`loader.sampler.set_epoch(epoch)` at the beginning of an epoch that has a number."""
    found = epochs_around(module, loop, function)
    if found is None:
        return None
    around, loader = found
    if not isinstance(around, ast.For) or not isinstance(around.target, ast.Name):
        return None
    counted = isinstance(around.iter, ast.Call) and written(around.iter.func) == "range"
    if not counted or not isinstance(loader, ast.Name | ast.Attribute):
        return None
    if any(origins.passes_on(value) for value, _ in sites.values_of(module, loader, function)):
        return None
    try:
        line = f"{written(loader)}.sampler.set_epoch({around.target.id})"
        return edits.insert_before(module, around.body[0], [line])
    except edits.NoFix:
        return None


def remedy(module: Module, loader: Site, loop: ast.For, function: Function | None) -> Fix | None:
    """A sampler in place of `shuffle`, which is told the epoch where it shuffles."""
    if not is_always_parallel(module):
        return None  # without ranks there is no sampler of theirs
    dataset = loader.argument(0, "dataset")
    shuffle = next((k for k in loader.node.keywords if k.arg == "shuffle"), None)
    if not isinstance(dataset, ast.Name | ast.Attribute) or len(loader.node.args) > 2:
        return None
    if shuffle is not None and not isinstance(shuffle.value, ast.Constant):
        return None
    shuffles = shuffle is not None and sites.is_true(shuffle.value)
    try:
        name, changed = edits.name_in_file(module, "torch.utils.data.DistributedSampler")
        rest = "" if shuffles else ", shuffle=False"
        text = f"sampler={name}({written(dataset)}{rest})"
        if shuffle is not None:
            start = module.source.offset(shuffle.lineno, shuffle.col_offset)
            end = module.span(shuffle.value)[1]
            given = Edit(start, end, text)
        else:
            given = edits.add_keyword(module, loader.node, text)
    except edits.NoFix:
        return None
    told = setting(module, loop, function) if shuffles else None
    if shuffles and told is None:
        return None
    every = [*changed, given, *([told] if told is not None else [])]
    return make_fix("Part the samples among the ranks", every, Safety.UNSAFE)
