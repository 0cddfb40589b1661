"""Where the host waits for the device: numbers that are read, tensors that are brought back."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import cadence, knowledge, placement, sites
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.nodes import walk
from oomlint.analysis.placement import Place

# A step that reads one or two numbers is everyday logging.
MANY = 3
TESTS = (ast.If, ast.IfExp, ast.Assert)
ASSIGNS = (ast.Assign, ast.AugAssign)
LOOPS = (ast.For, ast.comprehension)
READING = frozenset("item tolist cpu numpy".split())
# Methods of a tensor whose result the host has without waiting.
KNOWN = frozenset(
    "size dim ndim numel nelement shape dtype device layout stride names itemsize nbytes grad_fn"
    " is_contiguous is_cuda is_leaf is_sparse is_floating_point is_complex requires_grad get_device"
    " element_size".split()
)
# A function that is a test, where it also asserts something.
TEST_NAME = re.compile(r"_*test_")
TENSOR_MODULES = re.compile(
    r"torch(\.nn\.functional|\.special|\.linalg|\.autograd)?\.(?!no_grad|save|load|device|set_|is_|get_"
    r"|manual_seed|compile|Generator|Size|cuda|utils|backends|amp|inference_mode|from_numpy|cpu)[a-z]\w*"
)
ON_DEVICE = re.compile(
    r"\.cuda\(|\.to\([^)\n]*(device|cuda|gpu)|\bdevice\s*=|import.*(lightning|accelerate)", re.I
)
GRAD_OFF = re.compile(r"torch(\.autograd)?(\.grad_mode)?\.(no_grad|inference_mode)")
TRIVIAL = re.compile(r"range\([0-3]\)|\(.*\)|\[.*\]")


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of one place that runs once a step, or many times in one step (`nested`)."""

    nodes: tuple[ast.expr, ...]
    nested: bool


def hot(module: Module) -> Iterator[Waits]:
    """Steps that wait at least three times, and loops inside of a step that wait in each pass."""
    groups: dict[ast.AST, list[ast.expr]] = defaultdict(list)
    scopes: dict[ast.AST, Function | None] = {}
    for node, function in waits(module):
        if not cadence.is_unconditional(module, node):
            continue
        around = sites.loops_around(module, node)
        key = around[0] if around else function.node if function is not None else None
        if key is not None and not (function is not None and is_test(function)):
            groups[key].append(node)
            scopes[key] = function
    for place, nodes in groups.items():
        function = scopes[place]
        if isinstance(place, sites.LOOPS):
            if graph_is_off(module, place, function):
                continue
            if len(nodes) >= MANY and trains(module, place, function):
                yield Waits(tuple(nodes), False)
            elif is_inside_a_step(module, place, function):
                yield Waits(tuple(nodes), True)
        elif function is not None and len(nodes) >= MANY and updates(module, place, function):
            if cadence.once_a_step(module, function.node.body[0], function):
                yield Waits(tuple(nodes), False)


def is_test(function: Function) -> bool:
    """Whether a function trains a few steps only to compare what comes out of them."""
    return bool(TEST_NAME.match(function.name)) and "assert" in function.words


def graph_is_off(module: Module, place: ast.AST, function: Function | None) -> bool:
    """Whether a loop has no gradients, so that its `self.backward()` is none."""
    return any(
        isinstance(context, ast.Call)
        and GRAD_OFF.fullmatch(sites.qualified_name(module, context.func, function))
        for context in sites.contexts_around(module, place)
    )


def trains(module: Module, loop: cadence.Loop, function: Function | None) -> bool:
    return cadence.is_step_loop(module, loop, function) and updates(module, loop, function)


def updates(module: Module, place: ast.AST, function: Function | None) -> bool:
    return any(
        cadence.is_work(module, site, False)
        for site in cadence.own_sites(module, getattr(place, "body", []), function)
    )


def is_inside_a_step(module: Module, loop: cadence.Loop, function: Function | None) -> bool:
    """Whether a loop runs over something inside of a step's work."""
    if isinstance(loop, ast.For | ast.AsyncFor) and TRIVIAL.fullmatch(written(loop.iter)):
        return False
    if not isinstance(loop, ast.For) or cadence.is_step_loop(module, loop, function):
        return False
    if cadence.BATCHES.search(written(loop.iter)) or not cadence.is_unconditional(module, loop):
        return False
    if updates(module, loop, function):
        return False  # its passes are micro-batches or tasks, much work each
    if acts(module, loop, function):
        return False
    outer = sites.loops_around(module, loop)
    return bool(outer) and trains(module, outer[0], function)


def acts(module: Module, loop: cadence.Loop, function: Function | None) -> bool:
    """Whether each pass steps an environment, which wants its action on the host."""
    return any(
        site.method == "step"
        and site.receiver is not None
        and knowledge.role_of_name(written(site.receiver)) is Role.ENVIRONMENT
        for site in cadence.own_sites(module, loop.body, function)
    )


def waits(module: Module) -> Iterator[tuple[ast.expr, Function | None]]:
    """Every expression at which the host waits for a tensor that the device computes."""
    known: dict[Function | None, set[str]] = {}

    def tensors(function: Function | None) -> set[str]:
        if function not in known:
            known[function] = tensors_of(module, function)
        return known[function]

    for site in sites.called(module, "item", "tolist", "cpu", "to", "float", "print"):
        function = site.function
        if site.receiver is None:
            given = site.node.args
            reads = site.qualified == "float" and len(given) == 1
            if reads or site.qualified == "print":
                if any(is_tensor(module, part, function, tensors(function)) for part in given):
                    yield site.node, function
        elif site.method == "to":
            if placement.destination(module, site) is Place.HOST:
                if is_tensor(module, site.receiver, function, tensors(function)):
                    yield site.node, function
        elif site.method != "float" and is_tensor(
            module, site.receiver, function, tensors(function)
        ):
            yield site.node, function
    for function in list(known):
        scope = module.tree if function is None else function.node
        for part in sites.own_nodes(scope):
            if isinstance(part, TESTS):
                if decides(module, part.test, function, tensors(function)):
                    yield part.test, function


def decides(module: Module, test: ast.expr, function: Function | None, tensors: set[str]) -> bool:
    """Whether the truth of a tensor decides: `if loss > limit`, `if not torch.isfinite(loss)`."""
    if isinstance(test, ast.BoolOp):
        return any(decides(module, part, function, tensors) for part in test.values)
    if isinstance(test, ast.UnaryOp):
        return decides(module, test.operand, function, tensors)
    return isinstance(test, ast.Compare | ast.Call) and is_tensor(module, test, function, tensors)


def tensors_of(module: Module, function: Function | None) -> set[str]:
    """Names of a scope that hold what the device computes, by what made and what used them."""
    scope = module.tree if function is None else function.node
    nodes = sites.own_nodes(scope)
    found = {name for node in nodes if type(node) is ast.Call for name in backpropagated(node)}
    assigns = [node for node in nodes if isinstance(node, ASSIGNS)]
    loops = [node for node in nodes if isinstance(node, LOOPS)]
    goals = [names_in([loop.target]) for loop in loops]
    targets = [names_in(n.targets if isinstance(n, ast.Assign) else [n.target]) for n in assigns]
    for _ in range(4):
        before = len(found)
        for loop, names in zip(loops, goals, strict=True):
            if is_tensor(module, loop.iter, function, found):
                found.update(name.id for name in names)
        for node, names in zip(assigns, targets, strict=True):
            if is_tensor(module, node.value, function, found):
                bound = (name.id for name in names if isinstance(name.ctx, ast.Store))
                found.update(n for n in bound if knowledge.role_of_name(n) is not Role.MODEL)
            elif any(name.id in found for name in names):
                found.update(summands(node.value))
        if len(found) == before:
            break
    return found


def names_in(targets: list[ast.expr]) -> list[ast.Name]:
    return [node for target in targets for node in walk(target) if isinstance(node, ast.Name)]


def backpropagated(node: ast.AST) -> Iterator[str]:
    """The loss of `loss.backward()`, `scaler.scale(loss).backward()`, `engine.backward(loss)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr not in ("backward", "manual_backward"):
        return
    inner = node.func.value
    if isinstance(inner, ast.Name):
        # With an argument it may be an accelerator that is told to.
        role = knowledge.role_of_name(inner.id) if node.args else None
        yield from [inner.id] if role is None else ()
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
        scaled = inner.args if inner.func.attr == "scale" else []
        yield from (part.id for part in scaled if isinstance(part, ast.Name))
    yield from (part.id for part in node.args[:1] if isinstance(part, ast.Name))


def summands(node: ast.expr) -> Iterator[str]:
    """What a loss is a sum of."""
    if isinstance(node, ast.BinOp):
        yield from summands(node.left)
        yield from summands(node.right)
    elif isinstance(node, ast.Name) and knowledge.LOSS_NAME.search(node.id):
        yield node.id


def is_tensor(module: Module, node: ast.expr, function: Function | None, tensors: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in tensors
    if isinstance(node, ast.Subscript | ast.Starred):
        return is_tensor(module, node.value, function, tensors)
    if isinstance(node, ast.Attribute):
        return node.attr not in KNOWN and is_tensor(module, node.value, function, tensors)
    if isinstance(node, ast.BinOp):
        return any(is_tensor(module, p, function, tensors) for p in (node.left, node.right))
    if isinstance(node, ast.UnaryOp):
        return is_tensor(module, node.operand, function, tensors)
    if isinstance(node, ast.Compare):
        plain = not any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
        plain = plain and not any(is_text(part) for part in node.comparators)
        return plain and is_tensor(module, node.left, function, tensors)
    if not isinstance(node, ast.Call):
        return False
    called = sites.qualified_name(module, node.func, function)
    if TENSOR_MODULES.fullmatch(called):
        return on_device(module, node, function, tensors)
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in READING | KNOWN:
            return False
        if is_tensor(module, node.func.value, function, tensors) or gathers(node.func):
            return True
        if node.func.attr in ("to", "cuda") and not is_constructed(node.func.value):
            site = sites.site_of(module, node, function)
            return placement.destination(module, site) in (Place.DEVICE, Place.OPEN)
    role = knowledge.role_of_name(written(node.func)) if called == "" else None
    return role in (Role.MODEL, Role.CRITERION)


# What an accelerator brings together from the ranks, and leaves on the device.
GATHERED = frozenset({"gather", "gather_for_metrics", "reduce", "clip_grad_norm_"})


def gathers(called: ast.Attribute) -> bool:
    accelerator = knowledge.role_of_name(written(called.value)) is Role.ACCELERATOR
    return accelerator and called.attr in GATHERED


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_constructed(node: ast.expr) -> bool:
    """`Net(...)`: an object of a class, not a tensor."""
    name = written(node.func).rsplit(".", 1)[-1] if isinstance(node, ast.Call) else ""
    return name[:1].isupper() and not name.endswith(("Tensor", "Variable"))


def on_device(module: Module, call: ast.Call, function: Function | None, tensors: set[str]) -> bool:
    """Whether a function of torch is given what the device computes, or makes it there."""
    if any(k.arg == "device" for k in call.keywords):
        return True
    return any(is_tensor(module, part, function, tensors) for part in call.args)
