"""Small training programs that print what torch.cuda says of their memory, for two devices to run.

Each is a model, a way to train it, and options; two that differ in one option make a pair, whose
difference is what a fix would bring.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        return self.head(self.body(y, y, tgt_mask=mask))


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


KINDS = {
    "mlp": (mlp, lambda: (torch.randn(128, 512).cuda(), torch.zeros(128).long().cuda()), None),
    "gpt": (GPT, tokens, sequence_loss),
    "rms": (lambda: GPT(rms=True), tokens, sequence_loss),
    "checkpointed": (lambda: GPT(checkpointed=True), tokens, sequence_loss),
    "vit": (ViT, lambda: images(8), None),
    "resnet": (ResNet, lambda: images(4), None),
    "unet": (UNet, lambda: (images(4)[0],) * 2, F.mse_loss),
    "seq2seq": (Seq2Seq, tokens, sequence_loss),
}
"""

TRAINING = """
o = json.loads(sys.argv[1])
make, batch, criterion = KINDS[o["model"]]
criterion = criterion or F.cross_entropy
model = make().cuda()
if o["optimizer"] == "SGD":
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
else:
    optimizer = getattr(torch.optim, o["optimizer"])(model.parameters(), lr=1e-3)
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
    retain: bool = False  # keeps the losses with their graphs
    to_none: bool = True
    evaluate: str | None = None  # None trains
    than: str | None = None


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
)
