"""What is known of torch and the frameworks around it: data, not code."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache


class Role(Enum):
    """What an object is in a training step."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    SCALER = "gradient scaler"
    SCHEDULER = "scheduler"
    CRITERION = "criterion"
    LOADER = "loader"
    ACCELERATOR = "accelerator"  # Accelerate, Lightning Fabric: wraps backward and clipping
    ENGINE = "engine"  # DeepSpeed: backward and step are its own, and it zeroes
    STEPPER = "stepping scaler"  # timm's NativeScaler: one call does backward, clip and step
    ENVIRONMENT = "environment"


class Evidence(Enum):
    """How a role is known, strongest first."""

    CONSTRUCTED = 3
    USED = 2
    NAMED = 1


# Qualified names of constructors, matched whole.
CONSTRUCTORS: tuple[tuple[Role, re.Pattern[str]], ...] = tuple(
    (role, re.compile(pattern))
    for role, pattern in (
        (
            Role.SCHEDULER,
            r"torch\.optim\.lr_scheduler\.\w+|transformers\.get_\w*schedule\w*"
            r"|(timm\.scheduler|diffusers\.optimization)\.\w+",
        ),
        (
            Role.OPTIMIZER,
            r"torch\.optim\.(\w+\.)*[A-Z]\w*|transformers\.(AdamW|Adafactor)"
            r"|(transformers\.optimization)\.(AdamW|Adafactor)"
            r"|apex\.optimizers\.\w+|bitsandbytes\.optim\.\w+|bnb\.optim\.\w+"
            r"|timm\.optim\.\w+|torch_optimizer\.\w+|lion_pytorch\.\w+"
            r"|(\w+\.)*(Adam|AdamW|SGD|RMSprop|Lion|Lamb|LAMB|Adagrad|Adafactor|NAdam"
            r"|RAdam|LBFGS|AdamW8bit|Adam8bit|FusedAdam|FusedLAMB|LARS|Ranger|Prodigy)",
        ),
        (
            Role.SCALER,
            r"torch\.(cuda\.|cpu\.)?amp\.(grad_scaler\.)?GradScaler|(\w+\.)*GradScaler"
            r"|torch\.distributed\.fsdp\.sharded_grad_scaler\.ShardedGradScaler",
        ),
        (Role.STEPPER, r"timm\.utils\.(cuda\.)?(NativeScaler|ApexScaler)"),
        (Role.CRITERION, r"torch\.nn\.(modules\.loss\.)?\w*Loss"),
        (
            Role.LOADER,
            r"torch\.utils\.data\.(dataloader\.)?DataLoader|torch_geometric\.loader\.\w+"
            r"|torch_geometric\.data\.DataLoader",
        ),
        (
            Role.ACCELERATOR,
            r"accelerate\.(accelerator\.)?Accelerator|lightning(_fabric|\.fabric)\.\w+"
            r"|(lightning\.)?Fabric",
        ),
        (
            Role.MODEL,
            r"torch\.nn\.(modules\.\w+\.)?(?!Parameter$|init$|utils$|functional$)[A-Z]\w*"
            r"|torch\.nn\.parallel\.(\w+\.)*\w+|torch\.distributed\.fsdp\.(\w+\.)*Fully\w+"
            r"|torchvision\.models\.(\w+\.)*\w+|timm\.create_model|timm\.models\.create_model"
            r"|segmentation_models_pytorch\.\w+|torch\.hub\.load|torch\.jit\.load|peft\.get_peft_model"
            r"|torch_geometric\.nn\.(\w+\.)*[A-Z]\w*|monai\.networks\.nets\.(\w+\.)*\w+",
        ),
        (Role.ENVIRONMENT, r"(gym|gymnasium)\.(vector\.)?make"),
    )
)

# Modules that have no parameters: what they compute is an operation, not a forward of a model.
WITHOUT_PARAMETERS = re.compile(
    r"(torch\.)?nn\.(modules\.\w+\.)?(\w*ReLU6?|(?!Adaptive)\w*(Soft|Hard)\w+|Log\w+|Sigmoid|Tanh|[GES]ELU|SiLU|Mish"
    r"|\w*Dropout\w*|\w*Pool\dd|\w*Pad\dd|Upsample\w*|Pixel\w+|Flatten|Unflatten|Identity|Fold|Unfold"
    r"|CosineSimilarity|PairwiseDistance|Threshold)"
)

# A module of such a name keeps statistics of what it has seen, in buffers.
STATISTICS_NAME = re.compile(
    r"(mean_?std|mean_?var|running_?stats|normali[sz]er|\brms|_rms)$", re.I
)

# Calls that give back their first argument as the same object.
TRANSPARENT = re.compile(
    r"torch\.compile|torch\.jit\.(script|trace)|torch\.nn\.(parallel\.(\w+\.)*)?(Distributed)?DataParallel"
    r"|torch\.nn\.parallel\.(distributed\.)?DistributedDataParallel"
    r"|torch\.distributed\.fsdp\.(\w+\.)*(FullyShardedDataParallel|fully_shard)"
    r"|torch\.nn\.SyncBatchNorm\.convert_sync_batchnorm|apex\.parallel\.DistributedDataParallel"
    r"|tqdm\.(auto\.|notebook\.)?(tqdm|trange)|ipex\.optimize|peft\.get_peft_model"
    r"|(\w+\.)*(DDP|FSDP|DistributedDataParallel|FullyShardedDataParallel)"
)

# Functional losses of torch; all reduce by the mean unless told otherwise.
FUNCTIONAL_LOSS = re.compile(
    r"torch\.nn\.functional\.(\w*_loss|\w*cross_entropy\w*|kl_div)"
    r"|torch\.(binary_cross_entropy_with_logits|kl_div|ctc_loss|nll_loss)"
)

NO_GRAD = re.compile(r"torch\.(autograd\.(grad_mode\.)?)?(no_grad|inference_mode)")
ENABLE_GRAD = re.compile(r"torch\.(autograd\.(grad_mode\.)?)?enable_grad")
SET_GRAD = re.compile(r"torch\.(autograd\.(grad_mode\.)?|_C\.)?_?set_grad_enabled")
# Decorators of projects that wrap no_grad or inference_mode.
NO_GRAD_NAME = re.compile(r"(^|_)(no_?grad|inference_?mode)($|_)|^torch_no_grad$", re.IGNORECASE)
# What is measured may depend on the grad mode: a fused path counts other operations.
PROFILER = re.compile(r"flop|profil", re.IGNORECASE)
# Names of contexts whose effect on the grad mode cannot be told.
UNSURE_CONTEXT = re.compile(r"grad|infer|eval|ctx|context|maybe|mode|null|stack", re.IGNORECASE)

CLIP = re.compile(
    r"torch\.nn\.utils\.(clip_grad\.)?(clip_grad_norm_?|clip_grad_value_|clip_grads_with_norm_)"
    r"|timm\.utils\.(clip_grad\.)?dispatch_clip_grad|timm\.utils\.(agc\.)?adaptive_clip_grad"
)
CLIP_NAME = re.compile(
    r"^(clip_grad_norm_?|clip_grad_value_|dispatch_clip_grad|adaptive_clip_grad)$"
)
# Methods that clip: accelerator.clip_grad_norm_, fabric.clip_gradients, FSDP's own.
CLIP_METHOD = re.compile(r"^(clip_grad_norm_?|clip_grad_value_|clip_gradients|clip_grads)$")

AUTOGRAD_GRAD = re.compile(r"torch\.autograd\.(grad|functional\.\w+)|torch\.func\.\w+")
AUTOGRAD_BACKWARD = re.compile(r"torch\.autograd\.backward")
AMP_SCALE_LOSS = re.compile(r"(apex\.)?amp\.scale_loss")
AUTOCAST = re.compile(r"torch\.(\w+\.)*autocast(\.|$)|torch\.(cuda\.|cpu\.)?amp\.(\w+\.)*autocast")

# Methods of a network, besides `forward`, that run it: of Lightning, timm, CLIP and their like.
# Encoders of text are none: as the conditions of another network they are frozen.
FORWARDING = frozenset(
    "validation_step valid_step test_step forward_features encode_image get_image_features".split()
)

# Methods of a tensor whose result has no graph.
CUTTING = frozenset(
    "detach detach_ item tolist numpy data argmax argmin argsort long int bool byte short size dim"
    " numel nelement eq ne lt gt le ge isnan isinf isfinite any all nonzero shape dtype device type"
    " count_nonzero bincount unique multinomial get_device is_cuda ndim grad __len__ nbytes".split()
)
# Of these the second result is an index.
INDEXED = frozenset("max min topk sort median mode kthvalue cummax cummin".split())
# Builtins and modules whose result is no tensor.
NUMBER_CALLS = frozenset(
    "float int len str bool round repr format print isinstance hasattr id hash range".split()
)
NUMBER_MODULES = frozenset("numpy np math time os random json logging datetime".split())

# Methods that make a tensor from a tensor, graph included; on anything else they would be odd.
TENSOR_METHODS = frozenset(
    "mean sum cpu cuda to float half double bfloat16 squeeze unsqueeze view reshape flatten permute"
    " transpose contiguous clone softmax log_softmax sigmoid relu exp"
    " log abs pow sqrt mul div add sub"
    " neg clamp norm logsumexp std var prod gather"
    " masked_fill expand repeat cumsum dot mm matmul bmm"
    " chunk split unbind max min topk type_as".split()
)
# Functions of torch that make tensors without a graph.
FACTORIES = frozenset(
    "tensor zeros ones empty full arange linspace rand randn randint randperm zeros_like ones_like"
    " empty_like full_like rand_like randn_like as_tensor from_numpy eye logspace no_grad Generator"
    " device is_grad_enabled is_tensor normal multinomial bernoulli argmax argmin argsort".split()
)

# Last identifiers of names that say a role; used where nothing better is known.
NAMES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    (Role.SCHEDULER, re.compile(r"sched|warmup|lr_?decay", re.IGNORECASE)),
    (
        Role.SCALER,
        # Not every `_scaler`: sklearn's scale features.
        re.compile(
            r"^(\w*_)?(grad|loss|amp|fp16|[dg])_?scaler$|^scaler(_\w{1,3})?$|^grad_amp$",
            re.IGNORECASE,
        ),
    ),
    (
        Role.OPTIMIZER,
        re.compile(
            r"(^|_)(optim(izer|iser)?s?|optimi[sz]er_?[a-z0-9]{0,4}|opts?|opt_[a-z0-9]{1,4}|solver)$"
            r"|optimi[sz]er",
            re.IGNORECASE,
        ),
    ),
    (Role.ACCELERATOR, re.compile(r"^(accelerator|fabric|accel)$", re.IGNORECASE)),
    (Role.ENGINE, re.compile(r"(^|_)(model_)?engine$", re.IGNORECASE)),
    (Role.LOADER, re.compile(r"loader|(^|_)dl$|dataloader|^loader", re.IGNORECASE)),
    (
        Role.CRITERION,
        re.compile(
            r"^(criterion\w*|crit|loss_?f(n|unc|cn|ct|unction)|\w*_criterion|bce|mse|ce)$|^loss_?func",
            re.IGNORECASE,
        ),
    ),
    (Role.ENVIRONMENT, re.compile(r"(^|_)(envs?|environment|simulator)$", re.IGNORECASE)),
    (
        Role.MODEL,
        re.compile(
            r"(^|_)(model|net|network|classifier|backbone|encoder|decoder|generator|discriminator|net[gd]"
            r"|unet|transformer|agent|policy|actor|critic|student|teacher|module|vae|gan|ddp"
            r"|rnn|lstm|gru|cnn|mlp|resnet|bert|gpt|llm|autoencoder)_?\d*$"
            r"|(critic|actor|policy)_?\d?_(target|local|online)$"
            r"|^(model|net|network)_(train\w*|parallel|dp|dist\w*|body|ema|[a-z])$|^[GD]$",
            re.IGNORECASE,
        ),
    ),
)

# `get_model`, `build_optimizer`: functions that are named after what they make or change.
VERB = re.compile(
    r"(get|build|make|create|load|add|init|initialize|set|save|prepare|setup|register|update|wrap|export"
    r"|convert|compile|freeze|unfreeze|reset|del|remove|has|is|to|from|apply|print|log|run|check|parse"
    r"|patch|named|clone|copy|move|unwrap|use|configure)_",
    re.IGNORECASE,
)

LOSS_NAME = re.compile(
    r"(^|_)(loss(es)?|cost|err|nll|criterion|objective)\d*($|_)|loss", re.IGNORECASE
)
ACCUMULATION_NAME = re.compile(
    r"accum|iter_size|subdivision|update_freq|update_every|grad_acc|micro_?(batch|step)|batch_chunk|n_?micro",
    re.IGNORECASE,
)
# How code writes the number of samples or tokens in a batch.
SAMPLE_COUNT = re.compile(
    r"\.shape|\.size\(|len\(|batch_?size|(^|[._])(bs|n_?tokens|num_tokens|ntokens)\b|numel"
)
# Conditions that mean "this update is skipped".
SKIP_NAME = re.compile(
    r"nan|inf\b|finite|overflow|skip|valid|found_inf|too_large|explod", re.IGNORECASE
)
EVALUATION_NAME = re.compile(
    r"(^|_)(eval|evaluate|evaluation|valid|validate|validation|val|test|predict|prediction|infer|inference"
    r"|score|benchmark)(_|$|[A-Z])",
    re.IGNORECASE,
)
# Methods that a framework calls, with grad off where that is right (Lightning, MMEngine ...).
FRAMEWORK_HOOK = re.compile(
    r"^(training_step|validation_step|test_step|predict_step|val_step|eval_forward|on_\w+|forward|__call__"
    r"|(train|valid|val|test|eval|predict|infer|inference|sample)_(step|epoch|batch|one_epoch|fn)"
    r"|\w+_hook|\w+_callback)$"
)
LIGHTNING_MODULE = re.compile(r"(\w+\.)*LightningModule$|^pl\.LightningModule$")
MODULE_BASE = re.compile(
    r"torch\.nn\.(modules\.\w+\.)*(?!\w*Parameter$|Buffer$)[A-Z]\w*"
    r"|(\w+\.)*LightningModule|(\w+\.)*PreTrainedModel"
)
# What touches gradients after the window: p.grad.mul_, scale_grads, all-reduce of gradients.
GRADIENT_SCALING = re.compile(
    r"(scale|multiply|normali[sz]e|average|div|rescale)_?\w*grad|grad\w*_(scale|norm|div|avg)",
    re.IGNORECASE,
)

# Words that make a function worth following: it has training events of its own.
EVENT_WORDS = frozenset(
    "backward step zero_grad unscale_ clip_grad_norm_ clip_grad_norm clip_grad_value_"
    " manual_backward dispatch_clip_grad clip_gradients"
    " first_step second_step unscale_gradients scale_loss".split()
)
MODE_WORDS = frozenset("eval train no_grad inference_mode set_grad_enabled requires_grad_".split())


@lru_cache(maxsize=4096)
def is_transparent(qualified: str) -> bool:
    return TRANSPARENT.fullmatch(qualified) is not None


@lru_cache(maxsize=4096)
def role_of_constructor(qualified: str) -> Role | None:
    for role, pattern in CONSTRUCTORS:
        if pattern.fullmatch(qualified):
            return role
    if re.search(r"\.from_pretrained$", qualified) and not re.search(
        r"token|process|config|schedul|extractor|dataset|pipeline", qualified, re.IGNORECASE
    ):
        return Role.MODEL
    return None


def role_of_annotation(qualified: str) -> Role | None:
    return role_of_constructor(qualified) or (
        Role.MODEL if qualified.endswith("nn.Module") else None
    )


@lru_cache(maxsize=8192)
def role_of_name(name: str) -> Role | None:
    last = name.rsplit(".", 1)[-1].strip("_")
    if VERB.match(last):
        return None
    for role, pattern in NAMES:
        if pattern.search(last):
            return role
    return None
