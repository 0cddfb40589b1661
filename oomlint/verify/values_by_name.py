"""What a parameter or a setting of a given name usually is: data for stand-ins, not code."""

from __future__ import annotations

import re
from typing import Any

# Sizes of everything that is stood in for, small enough for a CPU.
BATCH, CLASSES, VOCABULARY, LENGTH, WIDTH, SIDE = 16, 10, 32, 16, 64, 32
# Micro-batches a step, and the steps of a run that is to be long enough.
ACCUMULATED, LONG = 2, 24

# The first pattern that a name matches; None is a name that says nothing.
SETTINGS: tuple[tuple[str, Any], ...] = (
    (r"device(_?ids?)?$|^dev$|^gpu$", "device"),
    (r"warm_?up", 1),
    (r"^(cur\w*_|global_|this_)?(epoch|step|iter|iteration|it|ep)$|batch_?idx", 0),
    (r"local_rank|global_rank|(^|_)rank$|gpu_id|start_|_start$|seed|num_workers|patience", 0),
    (r"world_size|num_gpus?|n_gpus?$|ngpus|nprocs", 1),
    (r"accum|iter_size|update_freq|subdivisions", ACCUMULATED),
    (r"(num|max|total|train)_\w*(steps?|iters?|iterations)(_per_epoch)?$", LONG),
    (r"(steps|iters|iterations|batches)_per_epoch$|epoch_(iters|steps)$", LONG),
    (r"(^|_)dtype$|precision$", "dtype"),
    (r"learning_rate|(^|_)lr$|^lr|_lr_|base_lr|^eta$", 0.01),
    (r"weight_decay|^wd$|momentum|dropout|label_smoothing|smoothing|^decay|_decay$", 0.1),
    (r"(^|_)eps(ilon)?$", 1e-6),
    (r"clip|max_norm|grad_norm", 1.0),
    (r"alpha|beta|gamma|lambda|lam\w{0,2}$|temperature|^temp$|tau|ratio|margin|coef|scale", 0.5),
    (r"(^|_)weight$|weights?_|threshold|thresh$|prob|(^|_)p$|mixup|cutmix|sigma|std$|mean$", 0.5),
    (r"^(use|is|do|has|no|with|if|should|enable|disable)_|_only$|^(not?|resume|debug)", False),
    (
        r"amp$|(^|_)amp_|enabled?$|fp16|bf16|half|distributed|multi_?gpu|verbose|quiet|silent|dry_run|wandb|ema$",
        False,
    ),
    (r"tensorboard|deterministic|benchmark|^(dp|ddp|fsdp|deepspeed|apex|eval|test|train)$", False),
    (r"pretrained|parallel|visuali[sz]e|^plot|^show|^save$|finetune|freeze|shuffle", False),
    (r"^cuda$", True),
    (r"batch_?size|(^|_)bs(z)?$", BATCH),
    (r"(num|n)_?(class|label|categor|cls)|(^|_)classes$|^out_dim|output_(dim|size)", CLASSES),
    (r"vocab|n_?tokens?$|^ntoken", VOCABULARY),
    (r"seq_?len|max_len|max_seq|bptt|block_size|context_len|src_len|tgt_len|max_length", LENGTH),
    (r"hidden|embed|d_model|n_embd|feature|latent|z_?dim|nz$|noise|(^|_)dim$|width", WIDTH),
    (r"(img|image|input|crop|resize|patch)_?(size|dim)|resolution|height", SIDE),
    (r"(^|_)(freq|interval|every|period)|(print|log|save|eval|disp)_(freq|step|iter|every)", 10),
    (r"epochs?$|(^|_)iter(ation)?s?$|(^|_)steps?$|(^|_)(num|n|max|total)_", 4),
    (r"path|dir$|directory|folder|(^|_)file(name)?$|root$|save_to|checkpoint$|ckpt", "path"),
    (r"name$|mode$|type$|split$|prefix|suffix|title|header|desc|phase|stage|task|arch$", "text"),
)
WORDS = tuple((re.compile(pattern, re.IGNORECASE), value) for pattern, value in SETTINGS)

# What tensors are called; the first kind is the likeliest, the others are tried after it.
TENSORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"(input|token)_?ids?$|tokens?$|(^|_)ids$|sent(ence)?s?$|words?$|captions?$", ("tokens",)),
    (r"attention_mask|pad(ding)?_mask|token_type", ("mask",)),
    (r"^(tgt|trg)", ("tokens", "label", "number", "heat")),
    (r"(^|_)lens?$|lengths?$", ("lengths",)),
    (r"ind(ex|ices)$|(^|_)idx$|index$", ("index", "tokens")),
    (r"mask|segm|(^|_)seg$|depth|heat|density|sal(iency)?", ("heat", "dense", "image")),
    (r"box|annot", ("boxes", "number", "label")),
    (r"noise|latent|(^|_)z$|emb|feat|obs|states?$", ("vector", "image")),
    (
        r"label|target|(^|_)(y|gt|tgt|lbl|cls|class(es)?)\d?$|truth|answer|true$",
        ("label", "number", "heat", "dense", "tokens", "boxes", "image", "floats"),
    ),
    (
        r"im(g|age)s?|pixel|photo|picture|frame|video|samples?$|hr$|lr$|rgb",
        ("image", "grey", "images"),
    ),
    (r"src|source|seq|text|sequence|prompt", ("tokens", "image", "vector")),
)
KINDS = tuple((re.compile(pattern, re.IGNORECASE), kinds) for pattern, kinds in TENSORS)
INPUT = ("image", "vector", "tokens", "grey", "images")
TARGET = ("label", "number", "heat", "dense", "tokens", "boxes", "floats")

# Targets of losses that take integers, and of those that take floats.
INTEGER = ("label", "dense", "tokens", "index", "boxes")
FLOAT = ("number", "heat", "floats", "image", "vector", "boxes")


def setting(name: str) -> Any:
    """A plausible value: a number, a bool, or one of device, dtype, path, text; None if unknown."""
    return next((value for pattern, value in WORDS if pattern.search(name)), None)


def kinds_of(name: str, position: int, targets: str = "") -> tuple[str, ...]:
    """Kinds of tensor that a name may stand for, likeliest first.

    `targets` is `integer` or `float` where it is known which ones the loss takes.
    """
    usual = INPUT if position == 0 else TARGET
    kinds = next((kinds for pattern, kinds in KINDS if pattern.search(name)), usual)
    wanted = {"integer": INTEGER, "float": FLOAT}.get(targets, ())
    fitting = tuple(kind for kind in kinds if kind in wanted) if position else ()
    return fitting or kinds
