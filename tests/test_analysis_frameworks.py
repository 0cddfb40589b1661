"""Which training events a step of each framework is made of, in their order."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

import pytest
from stories import events


@dataclass(frozen=True)
class Step:
    """What one iteration of `for x, y in loader` does, and what it is called in the model.

    A function is followed only where a rule could judge it: where it evaluates, or calls both
    `backward` and `step`. That is why some of these put the model into evaluation mode first.
    """

    name: str
    body: str
    expected: list[str]
    before: str = ""
    imports: str = "import torch"

    @property
    def text(self) -> str:
        return "\n".join(
            [
                dedent(self.imports),
                "import torch.nn.functional as F",
                "def train(model, loader, criterion, optimizer, scheduler, args):",
                indent(dedent(self.before), "    "),
                "    for x, y in loader:",
                indent(dedent(self.body), "        "),
            ]
        )


FORWARD = "loss = criterion(model(x), y)\n"

STEPS = [
    # plain torch
    Step(
        "torch",
        "optimizer.zero_grad()\n" + FORWARD + "loss.backward()\noptimizer.step()",
        ["zero optimizer", "forward model", "backward", "step optimizer"],
    ),
    Step(
        "set_to_none",
        FORWARD + "loss.backward()\noptimizer.step()\noptimizer.zero_grad(set_to_none=True)",
        ["forward model", "backward", "step optimizer", "zero optimizer"],
    ),
    Step(
        "model.zero_grad",
        "model.zero_grad()\n" + FORWARD + "loss.backward()\noptimizer.step()",
        ["zero model", "forward model", "backward", "step optimizer"],
    ),
    Step(
        "gradients set to None by hand",
        FORWARD
        + "loss.backward()\noptimizer.step()\nfor p in model.parameters():\n    p.grad = None",
        ["forward model", "backward", "step optimizer", "zero model"],
    ),
    Step(
        "gradients zeroed by hand",
        FORWARD
        + "loss.backward()\noptimizer.step()\nfor p in model.parameters():\n    p.grad.zero_()",
        ["forward model", "backward", "step optimizer", "zero"],
    ),
    Step(
        "gradients scaled by hand",
        FORWARD
        + "loss.backward()\nfor p in model.parameters():\n    p.grad.mul_(0.5)\noptimizer.step()",
        ["forward model", "backward", "grad-touched", "step optimizer"],
    ),
    Step(
        "gradients divided in place",
        FORWARD
        + "loss.backward()\nfor p in model.parameters():\n    p.grad /= 4\noptimizer.step()",
        ["forward model", "backward", "grad-touched", "step optimizer"],
    ),
    Step(
        "clip by value",
        FORWARD
        + "loss.backward()\ntorch.nn.utils.clip_grad_value_(model.parameters(), 1)"
        + "\noptimizer.step()",
        ["forward model", "backward", "clip", "step optimizer"],
    ),
    Step(
        "clip imported by name",
        FORWARD + "loss.backward()\nclip(model.parameters(), 1)\noptimizer.step()",
        ["forward model", "backward", "clip", "step optimizer"],
        imports="import torch\nfrom torch.nn.utils import clip_grad_norm_ as clip",
    ),
    Step(
        "a model's own clip",
        FORWARD + "loss.backward()\nmodel.clip_grad_norm_(1.0)\noptimizer.step()",
        ["forward model", "backward", "clip", "step optimizer"],
    ),
    Step(
        "scheduler",
        FORWARD + "loss.backward()\noptimizer.step()\nscheduler.step()",
        ["forward model", "backward", "step optimizer", "scheduler-step scheduler"],
    ),
    Step(
        "scheduler made here",
        FORWARD + "loss.backward()\noptimizer.step()\nplan.step()",
        ["forward model", "backward", "step optimizer", "scheduler-step StepLR"],
        before="plan = torch.optim.lr_scheduler.StepLR(optimizer, 1)",
    ),
    Step(
        "torch.autograd.backward",
        FORWARD + "torch.autograd.backward(loss)\noptimizer.step()",
        ["forward model", "backward", "step optimizer"],
    ),
    Step(
        "torch.autograd.grad",
        FORWARD + "grads = torch.autograd.grad(loss, model.parameters())",
        ["eval model", "forward model", "grad-taken"],
        before="model.eval()",
    ),
    Step(
        "closure",
        """\
        def closure():
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            return loss
        optimizer.step(closure)
        """,
        ["zero optimizer", "forward model", "backward", "step optimizer"],
    ),
    Step(
        "sharpness-aware steps",
        FORWARD
        + "loss.backward()\nsam.first_step(zero_grad=True)\ncriterion(model(x), y).backward()"
        + "\nsam.second_step(zero_grad=True)",
        ["eval model", *["forward model", "backward", "step args.sam", "zero args.sam"] * 2],
        before="sam = args.sam\nmodel.eval()",
    ),
    Step(
        "eval and train",
        "model.eval()\nmodel.train()\nmodel.train(False)\nmodel.train(mode=True)",
        ["eval model", "train model", "eval model", "train model"],
    ),
    Step(
        "environment",
        "action = model(x)\nenv.step(action)",
        ["forward model", "env-step make"],
        before='env = gym.make("Pendulum-v1")',
        imports="import torch\nimport gymnasium as gym",
    ),
    # torch.amp
    Step(
        "torch.amp",
        """\
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        """,
        [
            "zero optimizer",
            "forward model",
            "backward scaled",
            "unscale optimizer",
            "clip",
            "scaler-step optimizer",
            "scaler-update",
        ],
        before='scaler = torch.amp.GradScaler("cuda")',
    ),
    Step(
        "torch.cuda.amp",
        FORWARD + "grad.scale(loss).backward()\ngrad.step(optimizer)\ngrad.update()",
        ["forward model", "backward scaled", "scaler-step optimizer", "scaler-update"],
        before="grad = GradScaler()",
        imports="import torch\nfrom torch.cuda.amp import GradScaler",
    ),
    Step(
        "scaled in two lines",
        FORWARD + "scaled = scaler.scale(loss)\nscaled.backward()\nscaler.step(optimizer)",
        ["forward model", "backward scaled", "scaler-step optimizer"],
        before="scaler = args.scaler",
    ),
    Step(
        "sharded scaler",
        FORWARD + "s.scale(loss).backward()\ns.step(optimizer)\ns.update()",
        ["forward model", "backward scaled", "scaler-step optimizer", "scaler-update"],
        before="s = ShardedGradScaler()",
        imports="import torch\nfrom torch.distributed.fsdp.sharded_grad_scaler import "
        "ShardedGradScaler",
    ),
    Step(
        "a meter's update is no scaler's",
        FORWARD + "loss.backward()\nmeter.update(loss.item())\noptimizer.step()",
        ["forward model", "backward", "step optimizer"],
        before="meter = args.meter",
    ),
    # Accelerate
    Step(
        "Accelerate",
        """\
        with accelerator.accumulate(model):
            loss = criterion(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        """,
        ["forward model", "backward accelerator", "clip", "step optimizer", "zero optimizer"],
        before="""\
        accelerator = Accelerator()
        model, optimizer = accelerator.prepare(model, optimizer)
        """,
        imports="import torch\nfrom accelerate import Accelerator",
    ),
    Step(
        "Accelerate unscales",
        FORWARD + "acc.backward(loss)\nacc.unscale_gradients()\noptimizer.step()",
        ["forward model", "backward accelerator", "unscale Accelerator", "step optimizer"],
        before="acc = accelerate.Accelerator()",
        imports="import torch\nimport accelerate",
    ),
    # Lightning
    Step(
        "Fabric",
        FORWARD
        + "fabric.backward(loss)\nfabric.clip_gradients(model, optimizer, max_norm=1.0)"
        + "\noptimizer.step()\noptimizer.zero_grad()",
        ["forward model", "backward accelerator", "clip", "step optimizer", "zero optimizer"],
        before="fabric = Fabric()\nmodel, optimizer = fabric.setup(model, optimizer)",
        imports="import torch\nfrom lightning.fabric import Fabric",
    ),
    # DeepSpeed
    Step(
        "DeepSpeed",
        "loss = criterion(engine(x), y)\nengine.backward(loss)\nengine.step()",
        ["forward deepspeed", "backward engine", "engine-step deepspeed"],
        before="engine, _, _, _ = deepspeed.initialize(model=model, config=args)",
        imports="import torch\nimport deepspeed",
    ),
    Step(
        "DeepSpeed by name",
        "loss = model_engine(x, y)\nmodel_engine.backward(loss)\nmodel_engine.step()",
        ["backward engine", "engine-step args.model_engine"],
        before="model_engine = args.model_engine",
    ),
    # Apex
    Step(
        "Apex",
        FORWARD
        + "with amp.scale_loss(loss, optimizer) as scaled_loss:\n    scaled_loss.backward()"
        + "\ntorch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)\noptimizer.step()",
        ["forward model", "backward scaled", "clip", "step optimizer"],
        imports="import torch\nfrom apex import amp",
    ),
    # timm
    Step(
        "timm's scaler",
        "optimizer.zero_grad()\n" + FORWARD + "loss_scaler(loss, optimizer, clip_grad=1.0)",
        ["eval model", "zero optimizer", "forward model", "backward stepper", "step optimizer"],
        before="loss_scaler = NativeScaler()\nmodel.eval()",
        imports="import torch\nfrom timm.utils import NativeScaler",
    ),
    Step(
        "timm's scaler by name",
        FORWARD + "loss_scaler(loss, optimizer, parameters=model.parameters())",
        ["eval model", "forward model", "backward stepper", "step optimizer"],
        before="loss_scaler = args.loss_scaler\nmodel.eval()",
    ),
    Step(
        "timm's clip",
        FORWARD + "loss.backward()\ndispatch_clip_grad(model.parameters(), 1.0)\noptimizer.step()",
        ["forward model", "backward", "clip", "step optimizer"],
        imports="import torch\nfrom timm.utils import dispatch_clip_grad",
    ),
    # Hugging Face
    Step(
        "a Hugging Face model's own loss",
        "loss = model(input_ids=x, labels=y).loss\nloss.backward()\nadam.step()\nplan.step()",
        [
            "forward from_pretrained",
            "backward",
            "step AdamW",
            "scheduler-step get_linear_schedule_with_warmup",
        ],
        before="""\
        model = AutoModelForCausalLM.from_pretrained(args.name)
        adam = AdamW(model.parameters())
        plan = get_linear_schedule_with_warmup(adam, 1, 2)
        """,
        imports="""\
        import torch
        from torch.optim import AdamW
        from transformers import AutoModelForCausalLM, get_linear_schedule_with_warmup
        """,
    ),
    Step(
        "outputs as a tuple",
        "outputs = model(x, labels=y)\nloss = outputs[0]\nloss.backward()\noptimizer.step()",
        ["forward model", "backward", "step optimizer"],
    ),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_events_of_one_iteration(step: Step) -> None:
    assert events(step.text) == step.expected


def test_an_engine_computes_a_forward() -> None:
    before = "engine, _, _, _ = deepspeed.initialize(model=model)\nengine.eval()"
    step = Step("", "out = engine(x)", [], before, "import deepspeed")
    # The mode reaches the model, too, which the script may call itself.
    assert events(step.text) == ["eval deepspeed", "eval model", "forward deepspeed"]


LIGHTNING = """
    import torch
    import lightning as L

    class Gan(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = torch.nn.Linear(2, 2)

        def training_step(self, batch, index):
            opt = self.optimizers()
            opt.zero_grad()
            loss = self.net(batch).mean()
            self.manual_backward(loss)
            self.clip_gradients(opt, gradient_clip_val=1.0)
            opt.step()

        def validation_step(self, batch, index):
            self.eval()
            return self.net(batch).mean()
"""


def test_manual_optimization_in_lightning() -> None:
    assert events(LIGHTNING) == [
        "zero self.optimizers",
        "forward Linear",
        "backward model",
        "clip",
        "step self.optimizers",
    ]


IGNITE = """
    from ignite.engine import Engine, Events

    def train(model, optimizer, criterion, loader):
        def update(engine, batch):
            loss = criterion(model(batch), batch)
            loss.backward()

        trainer = Engine(update)

        @trainer.on(Events.ITERATION_COMPLETED)
        def step(engine):
            optimizer.step()

        trainer.add_event_handler(Events.ITERATION_STARTED, lambda engine: optimizer.zero_grad())
        trainer.run(loader)
"""


def test_the_order_in_which_ignite_calls_a_process_and_its_handlers() -> None:
    assert events(IGNITE) == ["zero optimizer", "forward model", "backward", "step optimizer"]


def test_an_engine_that_runs_elsewhere_calls_its_process_all_the_same() -> None:
    made = IGNITE.replace("trainer.run(loader)", "return trainer")
    assert events(made) == ["zero optimizer", "forward model", "backward", "step optimizer"]


AUTOMATIC = """
    import torch
    import lightning as L

    class Classifier(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(2, 2)
            self.losses = []

        def training_step(self, batch, index):
            loss = self.net(batch).mean()
            self.losses.append(loss)
            return {"loss": loss}
"""


def test_lightning_walks_the_loss_that_a_training_step_returns() -> None:
    assert events(AUTOMATIC) == [
        "forward Linear",
        "keep container",
        "backward engine",
        "engine-step self",
    ]
