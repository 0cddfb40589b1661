"""Small training programs that print what torch.cuda says of their memory, for two devices to run.

Each is a model, a way to train it, and options; two that differ in one option make a pair, whose
difference is what a fix would bring.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

MODELS = """
import contextlib, json, sys
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
torch.manual_seed(0)
VOCABULARY, WIDTH, LENGTH, BATCH = 1500, 256, 64, 4


class Norm(nn.Module):
    def __init__(self, width, rms):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = None if rms else nn.Parameter(torch.zeros(width))

    def forward(self, x):
        if self.bias is None:
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias)


class Block(nn.Module):
    def __init__(self, width, heads, rms=False, causal=True, dropout=0.1):
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.first, self.second = Norm(width, rms), Norm(width, rms)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.first(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)))))


class GPT(nn.Module):
    def __init__(self, rms=False, checkpointed=False, layers=3):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, 8, rms) for _ in range(layers))
        self.norm, self.head = Norm(WIDTH, rms), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.checkpointed = checkpointed

    def forward(self, x):
        y = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            y = checkpoint(block, y, use_reentrant=False) if self.checkpointed else block(y)
        return self.head(self.norm(y))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.place = nn.Linear(192, WIDTH), nn.Parameter(torch.zeros(1, 64, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, 4, causal=False) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x):
        b = x.shape[0]
        x = x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(b, 64, 192)
        return self.head(self.norm(self.blocks(self.patch(x) + self.place)).mean(1))


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.one = nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.n1, self.n2 = nn.BatchNorm2d(b), nn.BatchNorm2d(b)
        same = stride == 1 and a == b
        self.skip = nn.Identity() if same else nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.n1(self.one(x)), inplace=True)
        return F.relu(self.n2(self.two(y)) + self.skip(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = ((3, 32, 1), (32, 64, 2), (64, 128, 2), (128, 128, 1))
        self.body = nn.Sequential(*(Residual(*size) for size in sizes))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        conv = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(8, b), nn.SiLU())
        self.a, self.b, self.c = conv(3, 32), conv(32, 64), conv(64, 128)
        self.up1, self.up2 = (
            nn.ConvTranspose2d(128, 64, 2, 2),
            nn.ConvTranspose2d(64, 32, 2, 2),
        )
        self.d, self.e, self.out = conv(128, 64), conv(64, 32), nn.Conv2d(32, 3, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        d = self.d(torch.cat((self.up1(c), b), 1))
        return self.out(self.e(torch.cat((self.up2(d), a), 1)))


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Transformer(WIDTH, 8, 2, 2, 512, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        y = self.tokens(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        # Unless it is told, the decoder reads from the mask's values whether it is causal, and the
        # kernels of the other side compute none.
        return self.head(self.body(y, y, tgt_mask=mask, tgt_is_causal=True))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 128)
        self.body = getattr(nn, kind)(128, WIDTH, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        return self.head(self.body(self.tokens(x))[0])


class Masked(nn.Module):
    # Attention with dropout inside of it, causal or with a mask of its own.

    def __init__(self, masked):
        super().__init__()
        self.tokens, self.masked = nn.Embedding(VOCABULARY, WIDTH), masked
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        y = self.tokens(x)
        b, t, c = y.shape
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril() if self.masked else None
        for qkv in self.qkv:
            q, k, v = qkv(self.norm(y)).reshape(b, t, 3, 8, c // 8).permute(2, 0, 3, 1, 4)
            z = F.scaled_dot_product_attention(
                q, k, v, mask, 0.1 if self.training else 0.0, is_causal=not self.masked
            )
            y = y + z.transpose(1, 2).reshape(b, t, c)
        return self.head(y)


class Encoder(nn.Module):
    # torch's own layers over the patches of an image, checkpointed or not.

    def __init__(self, checkpointed):
        super().__init__()
        self.patch, self.checkpointed = nn.Conv2d(3, 192, 8, 8), checkpointed
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(192, 6, 768, 0.1, "gelu", batch_first=True, norm_first=True)
            for _ in range(3)
        )
        self.head = nn.Linear(192, 10)

    def forward(self, x):
        y = self.patch(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            y = checkpoint(layer, y, use_reentrant=False) if self.checkpointed else layer(y)
        return self.head(y.mean(1))


class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        y = self.tokens(x)
        b, t, c = y.shape
        q, k, v = (layer(y).view(b, t, 8, c // 8) for layer in (self.q, self.k, self.v))
        weights = torch.einsum("bihd,bjhd->bhij", q, k) / (c // 8) ** 0.5
        later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weights = self.drop(weights.masked_fill(later, float("-inf")).softmax(-1))
        return self.head(y + torch.einsum("bhij,bjhd->bihd", weights, v).reshape(b, t, c))


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20000, 32) for _ in range(6))
        self.head = nn.Sequential(nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 2))

    def forward(self, x):
        return self.head(torch.cat([one(x[:, i]) for i, one in enumerate(self.tables)], 1))


def volumes():
    return nn.Sequential(
        nn.Conv3d(1, 16, 3, padding=1),
        nn.InstanceNorm3d(16, affine=True),
        nn.LeakyReLU(),
        nn.MaxPool3d(2),
        nn.ConvTranspose3d(16, 16, 2, 2),
        nn.Conv3d(16, 2, 1),
    )


def sounds():
    return nn.Sequential(
        nn.Conv1d(1, 64, 80, 16),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.MaxPool1d(4),
        nn.Conv1d(64, 128, 3, padding=2, dilation=2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def mlp():
    return nn.Sequential(
        nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


def tokens():
    x = torch.randint(0, VOCABULARY, (BATCH, LENGTH)).cuda()
    return x, x


def images(size):
    return torch.randn(size, 3, 64, 64).cuda(), torch.zeros(size, dtype=torch.long).cuda()


def sequence_loss(y, target):
    return F.cross_entropy(y.view(-1, VOCABULARY), target.view(-1))


def smoothed_loss(y, target):
    return F.cross_entropy(y, target, label_smoothing=0.1)


KINDS = {
    "mlp": (mlp, lambda: (torch.randn(128, 512).cuda(), torch.zeros(128).long().cuda()), None),
    "gpt": (GPT, tokens, sequence_loss),
    "rms": (lambda: GPT(rms=True), tokens, sequence_loss),
    "checkpointed": (lambda: GPT(checkpointed=True), tokens, sequence_loss),
    "vit": (ViT, lambda: images(8), None),
    "resnet": (ResNet, lambda: images(4), None),
    "unet": (UNet, lambda: (images(4)[0],) * 2, F.mse_loss),
    "seq2seq": (Seq2Seq, tokens, sequence_loss),
    "lstm": (lambda: Recurrent("LSTM"), tokens, sequence_loss),
    "gru": (lambda: Recurrent("GRU"), tokens, sequence_loss),
    "causal": (lambda: Masked(False), tokens, sequence_loss),
    "masked": (lambda: Masked(True), tokens, sequence_loss),
    "encoder": (lambda: Encoder(False), lambda: images(16), smoothed_loss),
    "encoder-checkpointed": (lambda: Encoder(True), lambda: images(16), smoothed_loss),
    "einsum": (Einsum, tokens, sequence_loss),
    "tables": (
        Tables,
        lambda: (torch.randint(0, 20000, (4096, 6)).cuda(), torch.zeros(4096).long().cuda()),
        None,
    ),
    "volumes": (
        volumes,
        lambda: (torch.randn(2, 1, 24, 24, 24).cuda(), torch.zeros(2, 24, 24, 24).long().cuda()),
        None,
    ),
    "sounds": (
        sounds,
        lambda: (torch.randn(16, 1, 16000).cuda(), torch.zeros(16).long().cuda()),
        None,
    ),
}
"""

TRAINING = """
o = json.loads(sys.argv[1])
make, batch, criterion = KINDS[o["model"]]
criterion = criterion or F.cross_entropy
model = make().cuda()
if o["precision"] == "bf16 parameters":
    model.bfloat16()
if o["optimizer"] == "SGD":
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
else:
    name, _, kind = o["optimizer"].partition(" ")
    options = {kind: True} if kind else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, **options)
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(o["precision"])
scaler = torch.amp.GradScaler("cuda", init_scale=1.0, enabled=o["precision"] == "fp16")
kept = []


def cast():
    return torch.autocast("cuda", dtype) if dtype else contextlib.nullcontext()


def step():
    for _ in range(o["accumulate"]):
        x, target = batch()
        with cast():
            loss = criterion(model(x), target)
        scaler.scale(loss / o["accumulate"]).backward()
        if o["retain"]:
            kept.append(loss)
    if o["clip"]:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=o["to_none"])


def evaluate():
    model.eval()
    with torch.no_grad() if o["evaluate"] == "no_grad" else contextlib.nullcontext():
        losses = []
        for _ in range(2):
            x, target = batch()
            losses.append(criterion(model(x), target))


run = step if o["evaluate"] is None else evaluate
if o["evaluate"] is None:
    run()
run()
torch.cuda.reset_peak_memory_stats()
for _ in range(2):
    run()
stats = torch.cuda.memory_stats()
names = ("requested", "allocated", "reserved")
print("MEMORY " + json.dumps({name: stats[f"{name}_bytes.all.peak"] for name in names}))
"""


@dataclass(frozen=True, slots=True)
class Program:
    """What differs between programs; `than` names the program whose fix this one is."""

    name: str
    model: str
    optimizer: str = "AdamW"
    precision: str = "fp32"
    accumulate: int = 1
    clip: bool = False
    retain: bool = False  # keeps the losses with their graphs
    to_none: bool = True
    evaluate: str | None = None  # None trains
    than: str | None = None

    def source(self) -> str:
        return MODELS + TRAINING

    def arguments(self) -> list[str]:
        return [json.dumps(asdict(self))]


PROGRAMS = (
    Program("MLP, SGD", "mlp", "SGD"),
    Program("MLP, Adam", "mlp", "Adam"),
    Program("GPT, AdamW", "gpt"),
    Program("GPT, SGD", "gpt", "SGD", than="GPT, AdamW"),
    Program("GPT, bf16 autocast", "gpt", precision="bf16"),
    Program("GPT, SGD, bf16 autocast", "gpt", "SGD", precision="bf16", than="GPT, SGD"),
    Program("GPT, SGD, fp16 autocast", "gpt", "SGD", precision="fp16", than="GPT, SGD"),
    Program("GPT, 4 micro-batches", "gpt", accumulate=4),
    Program("GPT, SGD, checkpointed", "checkpointed", "SGD", than="GPT, SGD"),
    Program("GPT, losses kept", "gpt", retain=True),
    Program("GPT, gradients zeroed", "gpt", to_none=False),
    Program("GPT, evaluated with grad", "gpt", evaluate="grad"),
    Program(
        "GPT, evaluated in no_grad", "gpt", evaluate="no_grad", than="GPT, evaluated with grad"
    ),
    Program("GPT with rms_norm, AdamW", "rms"),
    Program("GPT with rms_norm, SGD", "rms", "SGD", than="GPT with rms_norm, AdamW"),
    Program("GPT with rms_norm, SGD, bf16", "rms", "SGD", "bf16", than="GPT with rms_norm, SGD"),
    Program("ViT", "vit"),
    Program("ViT, bf16", "vit", precision="bf16", than="ViT"),
    Program("ResNet, SGD", "resnet", "SGD"),
    Program("U-Net, Adam", "unet", "Adam"),
    Program("encoder-decoder", "seq2seq"),
    Program("encoder-decoder, SGD", "seq2seq", "SGD", than="encoder-decoder"),
    Program("encoder-decoder, bf16", "seq2seq", "SGD", "bf16", than="encoder-decoder, SGD"),
    Program("GPT, fused AdamW, clipped", "gpt", "AdamW fused", "bf16", clip=True),
    Program("GPT, bf16 parameters", "gpt", precision="bf16 parameters", than="GPT, AdamW"),
    Program("LSTM, Adam, clipped", "lstm", "Adam", clip=True),
    Program("LSTM, bf16", "lstm", "Adam", "bf16", than="LSTM, Adam, clipped"),
    Program("GRU, RMSprop", "gru", "RMSprop"),
    Program("causal attention with dropout", "causal", "SGD"),
    Program("the same, bf16", "causal", "SGD", "bf16", than="causal attention with dropout"),
    Program("masked attention with dropout", "masked", "SGD"),
    Program(
        "masked attention, fp16", "masked", "SGD", "fp16", than="masked attention with dropout"
    ),
    Program("encoder, SGD", "encoder", "SGD"),
    Program("encoder, SGD, bf16", "encoder", "SGD", "bf16", than="encoder, SGD"),
    Program(
        "encoder, checkpointed, bf16",
        "encoder-checkpointed",
        "SGD",
        "bf16",
        than="encoder, SGD, bf16",
    ),
    Program("einsum attention, SGD", "einsum", "SGD"),
    Program("einsum attention, SGD, bf16", "einsum", "SGD", "bf16", than="einsum attention, SGD"),
    Program("embedding tables, Adagrad", "tables", "Adagrad"),
    Program("volumes, SGD", "volumes", "SGD"),
    Program("sounds, Adam, fp16", "sounds", "Adam", "fp16", clip=True),
)
