"""OOM213: `requires_grad = False` on a module, which freezes nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, freezing
from oomlint.analysis.answers import finding, make_fix, short
from oomlint.analysis.knowledge import Evidence
from oomlint.analysis.modules import Module, written
from oomlint.analysis.state import World
from oomlint.analysis.submodules import MODULE_METHODS, PART, is_module
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.token_patterns import AnyOf, Lines, NamePlaced

FLAG = (b"requires_grad",)
SET = rb"\s*\.\s*requires_grad\s*=(?!=)(?!\s*True[ \t]*(?:;|\"\"|$))"
METHOD = rb"\s*\.\s*(?:" + b"|".join(sorted(map(str.encode, MODULE_METHODS))) + rb")\b"
# Called or asked for parameters, bound, annotated, or one of the parts of a model.
MODULE_PLACES = re.compile(
    rb"(?<![.\w])\0(?:\s*\(|" + METHOD + rb"|\s*:=)|^[^(]*(?<!\w)\0\s*(?:,[^=(]*)?=(?!=)"
    rb"|^[ \t]*[(\[][^=]*(?<!\w)\0\s*[,)\]][^=]*=(?!=)|(?:^|[(,])[ \t*]*\0\s*:.|\bas[ \t]+\0(?!\w)"
    rb"|\bfor\b.*(?<!\w)\0(?!\w).*\bin\b.*(?:\.(?:named_)?(?:children|modules)\("
    rb"|\.(?:layers?|blocks|stages|features)(?![\w.])|[(\\]\s*$)"
)
ATTRIBUTE_PLACES = re.compile(
    rb"\.\0\s*(?:\(|=(?!=)|:|,[^=]*=(?!=)|[)\]][ \t,)\]]*=(?!=)|" + METHOD + rb")"
)


class FreezeWithoutEffect(Rule):
    """
    ## What it does
    Checks for `module.requires_grad = False` on a module instead of on its parameters.

    ## Why is this bad?
    `requires_grad` belongs to tensors. On a module the assignment makes a new attribute that
    nothing reads: the part that was meant to be frozen is trained all the same, and its
    activations, gradients and optimizer state stay in memory.

    ## Example
    ```python
    import torchvision

    model = torchvision.models.resnet18()
    model.requires_grad = False
    ```

    Use instead:
    ```python
    import torchvision

    model = torchvision.models.resnet18()
    model.requires_grad_(False)
    ```

    ## Fix safety
    Unsafe: the parameters stop being trained, as was meant.

    ## Measured
    The number of parameters that the optimizer trains falls by those of the module.

    ## References
    - [PyTorch: Module.requires_grad_](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.requires_grad_)
    """

    code = "OOM213"
    name = "freeze-without-effect"
    severity = Severity.ERROR
    tokens = ((".requires_grad", ". requires_grad"),)
    # A flag on what is used like a module somewhere, or on what may be anything.
    token_pattern = AnyOf(
        (
            NamePlaced(FLAG, re.compile(rb"(?<![.\w])(\w+)" + SET), MODULE_PLACES),
            NamePlaced(FLAG, re.compile(rb"\.(\w+)" + SET), ATTRIBUTE_PLACES),
            Lines(FLAG, re.compile(rb"\.(?:" + PART.pattern.encode() + rb")" + SET)),
            Lines(FLAG, re.compile(rb"(?:^|[^\w\s])" + SET)),
        )
    )
    claims = (Claim.FEWER_TRAIN,)

    def check(self, model: Model) -> Iterator[Finding]:
        world = World(model.project, model.module)
        for node in model.module.index.by_kind.get(ast.Assign, ()):
            assert isinstance(node, ast.Assign)
            for target in node.targets:
                if not isinstance(target, ast.Attribute) or target.attr != "requires_grad":
                    continue
                if not freezes_nothing(world, target.value, node.value):
                    continue
                text = short(model.module, target.value)
                message = (
                    f"`{text}` is a module: `requires_grad` on it is a plain attribute, and its"
                    " parameters are trained all the same"
                )
                yield finding(model, self, node, message, freeze(model.module, node, target))


def freezes_nothing(world: World, owner: ast.expr, value: ast.expr) -> bool:
    """Whether a flag is set on a module that has no such flag of its own."""
    module = world.subject
    literal = isinstance(value, ast.Constant)
    if isinstance(value, ast.Constant) and value.value is not False:
        return False
    function = module.function_of(owner)
    evidence = is_module(world, owner, function)
    if evidence is None or (not literal and evidence is not Evidence.CONSTRUCTED):
        return False
    if isinstance(owner, ast.Name) and function is not None:
        arguments = function.node.args.args
        if function.owner is not None and arguments and owner.id == arguments[0].arg:
            return False  # `self.requires_grad`: the class's own setting
    if freezing.is_frozen(module, owner, function) or freezing.is_unused(module, owner, function):
        return False
    return not is_read(module, owner)


def is_read(module: Module, owner: ast.expr) -> bool:
    """Whether the file looks at the attribute: then it is a flag of the project's own."""
    text = f"{written(owner)}.requires_grad"
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and node.attr == "requires_grad"
        and written(node) == text
        for node in module.index.by_kind.get(ast.Attribute, ())
    )


def freeze(module: Module, statement: ast.Assign, target: ast.Attribute) -> Fix | None:
    if len(statement.targets) > 1:
        return None
    call = f"{module.segment(target.value)}.requires_grad_({module.segment(statement.value)})"
    edit = edits.replace(module, statement, call)
    return make_fix(f"Write `{call}`", [edit], Safety.UNSAFE)
