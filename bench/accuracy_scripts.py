"""Whole training scripts that have little in common, for two devices to run.

Where `accuracy_programs` varies one option at a time, each of these is written as its kind of
training is: what its loop calls, in that order. Each defines `step`; `OPENING` and `ENDING` are
around it.
"""

from __future__ import annotations

from dataclasses import dataclass

OPENING = """
import copy, json, math, sys
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
torch.manual_seed(0)
device = torch.device("cuda")
"""

ENDING = """
step()
step()
torch.cuda.reset_peak_memory_stats()
step()
step()
stats = torch.cuda.memory_stats()
names = ("requested", "allocated", "reserved")
print("MEMORY " + json.dumps({name: stats[f"{name}_bytes.all.peak"] for name in names}))
"""

MASKED_WORDS = """
VOCABULARY, WIDTH = 3000, 192
class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.places = nn.Embedding(128, WIDTH)
        self.kinds = nn.Embedding(2, WIDTH)
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, 0.1, "gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.dense = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.words.weight

    def forward(self, words, padding):
        places = torch.arange(words.shape[1], device=words.device).unsqueeze(0)
        x = self.words(words) + self.places(places) + self.kinds(torch.zeros_like(words))
        x = self.body(self.drop(self.norm(x)), src_key_padding_mask=padding)
        return self.head(self.dense(x))

model = Bert().to(device)
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], lr=1e-4
)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))

def batch():
    words = torch.randint(1, VOCABULARY, (8, 96), device=device)
    padding = torch.arange(96, device=device).expand(8, -1) >= 90
    labels = torch.where(torch.rand(8, 96, device=device) < 0.15, words, -100)
    return words, padding, labels
"""

MASKED_WORDS_TRAINED = (
    MASKED_WORDS
    + """
def step():
    words, padding, labels = batch()
    logits = model(words, padding)
    loss = F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
"""
)

MASKED_WORDS_EVALUATED = (
    MASKED_WORDS
    + """
model.eval()

@torch.no_grad()
def step():
    correct = torch.zeros((), device=device)
    for _ in range(2):
        words, padding, labels = batch()
        logits = model(words, padding)
        correct += (logits.argmax(-1) == labels).sum()
        F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100)
"""
)

RECURRENT_WORDS = """
VOCABULARY = 4000
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 200)
        self.drop = nn.Dropout(0.2)
        self.body = nn.LSTM(200, 200, 2, dropout=0.2)
        self.head = nn.Linear(200, VOCABULARY)
        self.head.weight = self.words.weight

    def forward(self, words, state):
        made, state = self.body(self.drop(self.words(words)), state)
        return self.head(self.drop(made)).view(-1, VOCABULARY), state

model = Words().cuda()
state = tuple(torch.zeros(2, 20, 200, device=device) for _ in range(2))

def step():
    global state
    words = torch.randint(0, VOCABULARY, (36, 20)).cuda()
    model.zero_grad()
    state = tuple(one.detach() for one in state)
    logits, state = model(words[:-1], state)
    loss = nn.functional.nll_loss(F.log_softmax(logits, 1), words[1:].reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
"""

AUTOENCODER = """
class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        def down(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.GroupNorm(8, b), nn.SiLU())
        def up(a, b):
            return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.GroupNorm(8, b), nn.SiLU())
        self.encoder = nn.Sequential(down(3, 32), down(32, 64), down(64, 128), nn.Flatten())
        self.mean, self.spread = nn.Linear(128 * 64, 64), nn.Linear(128 * 64, 64)
        self.grow = nn.Linear(64, 128 * 64)
        self.decoder = nn.Sequential(up(128, 64), up(64, 32), nn.ConvTranspose2d(32, 3, 4, 2, 1))

    def forward(self, x):
        y = self.encoder(x)
        mean, spread = self.mean(y), self.spread(y)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        made = self.decoder(self.grow(z).view(-1, 128, 8, 8))
        return torch.sigmoid(made), mean, spread

model = AutoEncoder().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

def step():
    x = torch.rand(16, 3, 64, 64).cuda(non_blocking=True)
    made, mean, spread = model(x)
    divergence = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
    loss = F.binary_cross_entropy(made, x, reduction="sum") + divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

EXPERTS = """
WIDTH, EXPERTS, TOKENS = 128, 8, 1024
class Experts(nn.Module):
    # Each token goes to two experts; every expert takes the same share of the tokens.
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 4 * WIDTH) * 0.02)
        self.down = nn.Parameter(torch.randn(EXPERTS, 4 * WIDTH, WIDTH) * 0.02)

    def forward(self, x):
        share = self.router(x).softmax(-1)
        weights, order = share.t().topk(2 * TOKENS // EXPERTS, -1)
        taken = x.index_select(0, order.reshape(-1)).view(EXPERTS, -1, WIDTH)
        made = torch.bmm(F.silu(torch.bmm(taken, self.up)), self.down) * weights.unsqueeze(-1)
        out = torch.zeros_like(x)
        where = order.reshape(-1, 1).expand(-1, WIDTH)
        balance = share.mean(0).square().sum() * EXPERTS
        return out.scatter_add(0, where, made.reshape(-1, WIDTH)), balance

layers = nn.ModuleList(Experts() for _ in range(3)).to(device)
norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3)).to(device)
optimizer = torch.optim.SGD([*layers.parameters(), *norms.parameters()], lr=0.01, momentum=0.9)

def step():
    x = torch.randn(TOKENS, WIDTH, device=device)
    target = torch.randn(TOKENS, WIDTH, device=device)
    with torch.autocast("cuda", torch.bfloat16):
        balance = 0.0
        for layer, norm in zip(layers, norms):
            made, more = layer(norm(x))
            x, balance = x + made, balance + more
    loss = F.mse_loss(x.float(), target) + 0.01 * balance
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""

TWO_TOWERS = """
class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(width, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512),
            nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128),
        )

    def forward(self, x):
        return F.normalize(self.body(x), dim=-1)

one, other = Tower(256).to(device), Tower(384).to(device)
scale = nn.Parameter(torch.tensor(math.log(1 / 0.07), device=device))
optimizer = torch.optim.AdamW([*one.parameters(), *other.parameters(), scale], lr=1e-3)

def step():
    a, b = one(torch.randn(1024, 256).to(device)), other(torch.randn(1024, 384).to(device))
    logits = scale.exp() * a @ b.t()
    labels = torch.arange(1024, device=device)
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

ADVERSARIES = """
generator = nn.Sequential(
    nn.ConvTranspose2d(64, 128, 4, 1, 0, bias=False), nn.BatchNorm2d(128), nn.ReLU(True),
    nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
    nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
    nn.ConvTranspose2d(32, 3, 4, 2, 1, bias=False), nn.Tanh(),
).cuda()
judge = nn.Sequential(
    nn.Conv2d(3, 32, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(32, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(64, 1, 8, 1, 0, bias=False), nn.Flatten(0),
).cuda()
first = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
second = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()

def step():
    real = torch.randn(32, 3, 32, 32, device="cuda")
    judge.zero_grad()
    made = judge(real)
    loss = criterion(made, torch.ones_like(made))
    loss.backward()
    fake = generator(torch.randn(32, 64, 1, 1, device="cuda"))
    made = judge(fake.detach())
    loss = criterion(made, torch.zeros_like(made))
    loss.backward()
    second.step()
    generator.zero_grad()
    made = judge(fake)
    loss = criterion(made, torch.ones_like(made))
    loss.backward()
    first.step()
"""

SCALED = """
class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

model = nn.Sequential(nn.Linear(100, 256), *(Residual(256) for _ in range(4)), nn.Linear(256, 50))
model = model.to(device)
average = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
)
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=1.0)

def step():
    for _ in range(4):
        x, y = torch.randn(128, 100, device=device), torch.randint(0, 50, (128,), device=device)
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y) / 4
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    average.update_parameters(model)
"""

ADAPTERS = """
WIDTH, VOCABULARY = 256, 2000
class Adapted(nn.Module):
    def __init__(self, inner, rank=8):
        super().__init__()
        self.inner = inner
        self.a = nn.Parameter(torch.randn(rank, inner.in_features) * 0.02)
        self.b = nn.Parameter(torch.zeros(inner.out_features, rank))
        self.drop = nn.Dropout(0.05)

    def forward(self, x):
        return self.inner(x) + F.linear(F.linear(self.drop(x), self.a), self.b) * 2.0

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)

def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = Adapted(nn.Linear(WIDTH, WIDTH, False))
        self.v = Adapted(nn.Linear(WIDTH, 64, False))
        self.k, self.o = nn.Linear(WIDTH, 64, False), nn.Linear(WIDTH, WIDTH, False)
        self.gate, self.up = nn.Linear(WIDTH, 688, False), nn.Linear(WIDTH, 688, False)
        self.down = nn.Linear(688, WIDTH, False)
        self.one, self.two = Norm(), Norm()

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        y = self.one(x)
        q = self.q(y).view(b, t, 8, 32).transpose(1, 2)
        k = self.k(y).view(b, t, 2, 32).transpose(1, 2)
        v = self.v(y).view(b, t, 2, 32).transpose(1, 2)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        k, v = (z.repeat_interleave(4, 1) for z in (k, v))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(z.transpose(1, 2).reshape(b, t, WIDTH))
        y = self.two(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY, False)
        angles = torch.outer(torch.arange(128), 1e4 ** (-torch.arange(16) / 16)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, words):
        x = self.words(words)
        cos, sin = (z[: words.shape[1]].to(x.dtype) for z in (self.cos, self.sin))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))

model = Llama().to(device)
for name, p in model.named_parameters():
    p.requires_grad_(name.endswith((".a", ".b")))
    if not p.requires_grad:
        p.data = p.data.bfloat16()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=2e-4)

def step():
    words = torch.randint(0, VOCABULARY, (4, 96), device=device)
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(words)
    logits = logits[:, :-1].float().contiguous()
    loss = F.cross_entropy(logits.view(-1, VOCABULARY), words[:, 1:].reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 0.3)
    optimizer.step()
    optimizer.zero_grad()
"""

SAMPLING = """
WIDTH, HEADS, VOCABULARY = 256, 8, 3000
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1024), nn.GELU(), nn.Linear(1024, WIDTH)
        )

    def forward(self, x, past):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.body(x), (k, v)

words = nn.Embedding(VOCABULARY, WIDTH).to(device).eval()
layers = nn.ModuleList(Layer() for _ in range(4)).to(device).eval()
head = nn.Linear(WIDTH, VOCABULARY).to(device).eval()

@torch.inference_mode()
def step():
    made = torch.randint(0, VOCABULARY, (16, 48), device=device)
    x, past = words(made), [None] * 4
    for _ in range(24):
        for place, layer in enumerate(layers):
            x, past[place] = layer(x, past[place])
        logits = head(x[:, -1]) / 0.8
        least = logits.topk(50).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
        chosen = torch.multinomial(logits.softmax(-1), 1).clamp(0, VOCABULARY - 1)
        made = torch.cat((made, chosen), 1)
        x = words(torch.zeros_like(chosen))
"""

DIFFUSION = """
def embedding(moments, width=64):
    rates = torch.exp(-math.log(10000) * torch.arange(width // 2, device=moments.device) / 32)
    angles = moments[:, None].float() * rates[None]
    return torch.cat((angles.cos(), angles.sin()), -1)

class Block(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.one, self.two = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.first, self.second = nn.GroupNorm(8, a), nn.GroupNorm(8, b)
        self.time = nn.Linear(128, b)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x, t):
        y = self.one(F.silu(self.first(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.two(F.silu(self.second(y)))

class Look(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        y, _ = self.attention(y, y, y, need_weights=False)
        return x + y.transpose(1, 2).reshape(b, c, h, w)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.enter, self.leave = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
        self.a, self.b, self.c = Block(32, 32), Block(32, 64), Block(64, 64)
        self.look = Look(64)
        self.d, self.e = Block(128, 32), Block(64, 32)

    def forward(self, x, moments):
        t = self.time(embedding(moments))
        a = self.a(self.enter(x), t)
        b = self.b(F.avg_pool2d(a, 2), t)
        c = self.look(self.c(F.avg_pool2d(b, 2), t))
        c = F.interpolate(c, scale_factor=2.0, mode="nearest")
        d = F.interpolate(self.d(torch.cat((c, b), 1), t), scale_factor=2.0, mode="nearest")
        return self.leave(self.e(torch.cat((d, a), 1), t))

model = Net().to(device)
average = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
left = torch.linspace(1e-4, 0.02, 100).to(device).neg().add(1).cumprod(0)

def step():
    x = torch.randn(8, 3, 32, 32).to(device)
    moments = torch.randint(0, 100, (8,), device=device)
    noise = torch.randn_like(x)
    share = left[moments][:, None, None, None]
    with torch.autocast("cuda", torch.bfloat16):
        made = model(share.sqrt() * x + (1 - share).sqrt() * noise, moments)
    loss = F.mse_loss(made.float(), noise)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for kept, p in zip(average.parameters(), model.parameters()):
            kept.lerp_(p, 0.01)
"""

PREFERENCES = """
WIDTH, VOCABULARY = 192, 2000
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 6, 768, 0.0, batch_first=True, norm_first=True, bias=False
        )
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, words):
        t = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t, device=words.device)
        x = self.words(words) + self.places(torch.arange(t, device=words.device))
        return self.head(self.body(x, mask=mask, is_causal=True))

policy = Model().cuda()
reference = copy.deepcopy(policy).eval()
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-5)

def likelihood(model, words):
    logits = model(words)[:, :-1].log_softmax(-1)
    return logits.gather(2, words[:, 1:].unsqueeze(2)).squeeze(2).sum(-1)

def step():
    better, worse = (torch.randint(0, VOCABULARY, (6, 64), device="cuda") for _ in range(2))
    both = torch.cat((better, worse))
    one = likelihood(policy, both)
    with torch.no_grad():
        other = likelihood(reference, both)
    margin = (one - other).chunk(2)
    loss = -F.logsigmoid(0.1 * (margin[0] - margin[1])).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

ACTORS = """
body = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh()).to(device)
actor, critic = nn.Linear(512, 18).to(device), nn.Linear(512, 1).to(device)
parameters = [*body.parameters(), *actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)

def step():
    seen = torch.randn(2048, 64, device=device)
    done = torch.randint(0, 18, (2048,), device=device)
    with torch.no_grad():
        old = actor(body(seen)).log_softmax(-1).gather(1, done[:, None]).squeeze(1)
        gains = torch.randn(2048, device=device)
    for rows in torch.randperm(2048, device=device).chunk(4):
        made = body(seen[rows])
        logits = actor(made).log_softmax(-1)
        new = logits.gather(1, done[rows, None]).squeeze(1)
        ratio = (new - old[rows]).exp()
        gain = (gains[rows] - gains[rows].mean()) / (gains[rows].std() + 1e-8)
        first = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        second = F.mse_loss(critic(made).squeeze(1), gains[rows])
        spread = -(logits.exp() * logits).sum(-1).mean()
        optimizer.zero_grad()
        (first + 0.5 * second - 0.01 * spread).backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
"""


@dataclass(frozen=True, slots=True)
class Script:
    """A script that runs on both devices; `than` names the one that it is held against."""

    name: str
    body: str
    than: str | None = None

    def source(self) -> str:
        return OPENING + self.body + ENDING

    def arguments(self) -> list[str]:
        return []


SCRIPTS = (
    Script("masked words, AdamW", MASKED_WORDS_TRAINED),
    Script("masked words, evaluated", MASKED_WORDS_EVALUATED, "masked words, AdamW"),
    Script("recurrent words, by hand", RECURRENT_WORDS),
    Script("variational autoencoder, Adam", AUTOENCODER),
    Script("experts, SGD, bf16", EXPERTS),
    Script("two towers, AdamW", TWO_TOWERS),
    Script("adversaries, Adam", ADVERSARIES),
    Script("scaled and averaged, NAdam, fp16", SCALED),
    Script("adapters, AdamW, bf16", ADAPTERS),
    Script("sampling with a cache", SAMPLING),
    Script("diffusion, AdamW, bf16", DIFFUSION),
    Script("preferences, RMSprop", PREFERENCES),
    Script("actor and critic, Adam", ACTORS),
)
