"""More whole training scripts, of kinds that `accuracy_scripts` has none of."""

from __future__ import annotations

from accuracy_scripts import Script

ENCODED = """
def encoder():
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, 2, 2, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3, 2, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 256),
        nn.ReLU(inplace=True),
        nn.Linear(256, 128),
    )


query, key = encoder().to(device), encoder().to(device)
key.load_state_dict(query.state_dict())
for p in key.parameters():
    p.requires_grad = False
"""

EVALUATION = """
def step():
    query.eval()
    bank = []
    for _ in range(8):
        bank.append(query(torch.randn(128, 3, 32, 32, device=device)))
    bank = torch.cat(bank)
    near = (bank @ bank.T).topk(20, dim=1)
    labels = torch.zeros(len(bank), dtype=torch.long, device=device)
    votes = torch.zeros(len(bank), 10, device=device).scatter_add(
        1, labels[near.indices.clamp(0, 1023)], (near.values / 0.1).exp()
    )
    votes.argmax(1)
"""

QUEUE_EVALUATED = f"{ENCODED}\n{EVALUATION}"
QUEUE_NO_GRAD = f"{ENCODED}\n@torch.no_grad(){EVALUATION}"

SPEECH = """
class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(80, 128, 3, 2, 1),
            nn.BatchNorm1d(128),
            nn.Hardtanh(0, 20),
            nn.Conv1d(128, 128, 3, 1, 1),
            nn.GELU(),
        )
        self.body = nn.GRU(128, 160, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.out = nn.Linear(320, 32)

    def forward(self, x, lengths):
        y = self.front(x).transpose(1, 2)
        y = nn.utils.rnn.pack_padded_sequence(y, lengths, batch_first=True)
        y, _ = self.body(y)
        y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
        return self.out(y).log_softmax(-1).transpose(0, 1)


model = Listener().cuda()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9)
lengths = torch.tensor([100, 96, 90, 84, 80, 71, 60, 48])


def step():
    x = torch.randn(8, 80, 200, device="cuda")
    words = torch.randint(1, 32, (8, 20), device="cuda")
    loss = F.ctc_loss(model(x, lengths), words, lengths, torch.full((8,), 20), zero_infinity=True)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
"""

TAGS = """
words, body = (
    nn.Embedding(6000, 100).cuda(),
    nn.LSTM(100, 256, 2, bidirectional=True, proj_size=64, batch_first=True).cuda(),
)
out, moves = nn.Linear(128, 19).cuda(), nn.Parameter(torch.randn(19, 19, device="cuda"))
parameters = [*words.parameters(), *body.parameters(), *out.parameters(), moves]
optimizer = torch.optim.Adam(parameters, lr=1e-3, amsgrad=True)


def step():
    x, tags = torch.randint(0, 6000, (16, 30)).cuda(), torch.randint(0, 19, (16, 30)).cuda()
    scores = out(F.dropout(body(F.dropout(words(x), 0.3))[0], 0.3))
    total = scores[:, 0]
    for t in range(1, 30):
        total = torch.logsumexp(total.unsqueeze(2) + moves + scores[:, t].unsqueeze(1), 1)
    best = scores.gather(2, tags.unsqueeze(2)).sum((1, 2)) + moves[tags[:, :-1], tags[:, 1:]].sum(
        1
    )
    loss = (torch.logsumexp(total, 1) - best).mean()
    for p in parameters:
        p.grad = None
    loss.backward()
    optimizer.step()
"""

PLAYER = """
class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.see, self.cell, self.out = (
            nn.Linear(100, 256),
            nn.LSTMCell(256, 256),
            nn.Linear(256, 6),
        )

    def forward(self, x):
        state, made = None, []
        for one in x.unbind(1):
            state = self.cell(F.relu(self.see(one)), state)
            made.append(self.out(state[0]))
        return torch.stack(made, 1)


player = Player().to(device)
target = copy.deepcopy(player)
optimizer = torch.optim.NAdam(player.parameters(), lr=1e-4)
seen = torch.zeros(5000, 20, 100, device=device)


def step():
    rows = torch.randint(0, 5000, (64,), device=device)
    x = seen[rows]
    done = torch.randint(0, 6, (64, 20), device=device)
    value = player(x).gather(2, done.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        best = target(x).max(-1)[0]
    loss = F.smooth_l1_loss(value[:, :-1], torch.rand(64, 19, device=device) + 0.99 * best[:, 1:])
    loss = loss + value.max() * 1e-3
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(player.parameters(), 1)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(player.parameters()), 0.005)
"""

BAGS = """
class Ranks(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(8000, 24, mode=mode) for mode in ("sum", "mean", "sum", "mean")
        )
        self.low = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, 24), nn.ReLU())
        self.high = nn.Sequential(
            nn.Linear(34, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, dense, indices, offsets):
        low = self.low(dense)
        all = torch.stack([low, *(bag(i, offsets) for bag, i in zip(self.bags, indices))], 1)
        pairs = torch.bmm(all, all.transpose(1, 2))
        a, b = torch.tril_indices(5, 5, -1, device=pairs.device)
        return self.high(torch.cat((low, pairs[:, a, b]), 1)).squeeze(1)


model = Ranks().to(device)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)


def step():
    dense, clicks = torch.rand(2048, 13, device=device), torch.rand(2048, device=device)
    indices = [torch.randint(0, 8000, (2048 * 5,), device=device) for _ in range(4)]
    offsets = torch.arange(0, 2048 * 5, 5, device=device)
    loss = F.binary_cross_entropy_with_logits(model(dense, indices, offsets), clicks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

SEGMENTED = """
def block(a, b, rate=1):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=rate, dilation=rate, bias=False),
        nn.BatchNorm2d(b),
        nn.PReLU(b),
        nn.Dropout2d(0.1),
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = block(3, 24), block(24, 48), block(48, 96)
        self.wide = nn.ModuleList(block(96, 32, r) for r in (1, 3, 6))
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(96, 32, 1), nn.ReLU())
        self.join = nn.Conv2d(128, 48, 1)
        self.d, self.out = block(96, 24), nn.Conv2d(48, 7, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.avg_pool2d(b, 2))
        all = [one(c) for one in self.wide]
        all.append(self.pooled(c).expand(-1, -1, *c.shape[2:]))
        c = F.interpolate(
            self.join(torch.cat(all, 1)), size=b.shape[-2:], mode="bilinear", align_corners=False
        )
        d = F.interpolate(self.d(torch.cat((c, b), 1)), scale_factor=2, mode="bicubic")
        return self.out(torch.cat((d, a), 1))


model = Net().to("cuda")
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4
)
scaler = torch.amp.GradScaler("cuda", init_scale=1.0)


def dice(logits, target):
    share = logits.float().softmax(1)
    one = F.one_hot(target, 7).permute(0, 3, 1, 2).to(share.dtype)
    both = (share * one).sum((0, 2, 3))
    return 1 - ((2 * both + 1) / (share.sum((0, 2, 3)) + one.sum((0, 2, 3)) + 1)).mean()


def step():
    x, y = (
        torch.randn(4, 3, 64, 64).to("cuda"),
        torch.zeros(4, 64, 64, dtype=torch.long).to("cuda"),
    )
    optimizer.zero_grad()
    with torch.amp.autocast("cuda", enabled=False):
        logits = model(x)
        loss = F.cross_entropy(logits, y) + dice(logits, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

SEGMENTED_HALVES = SEGMENTED.replace("enabled=False", "dtype=torch.float16")

HIDDEN_PATCHES = """
class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 160, 8, 8)
        self.place, self.token = (
            nn.Parameter(torch.zeros(1, 64, 160)),
            nn.Parameter(torch.zeros(1, 1, 96)),
        )

        def layers(width, count):
            one = nn.TransformerEncoderLayer(
                width, 4, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
            )
            return nn.TransformerEncoder(one, count, enable_nested_tensor=False)

        self.encoder, self.between, self.decoder = (
            layers(160, 3),
            nn.Linear(160, 96),
            layers(96, 2),
        )
        self.out = nn.Linear(96, 192)

    def forward(self, x):
        y = self.patch(x).flatten(2).transpose(1, 2) + self.place
        b, n, c = y.shape
        order = torch.rand(b, n, device=y.device).argsort(1)
        back = order.argsort(1)
        seen = order[:, :16]
        y = self.encoder(y.gather(1, seen.clamp(0, 63).unsqueeze(-1).expand(-1, -1, c)))
        y = self.between(y)
        y = torch.cat((y, self.token.expand(b, n - 16, -1)), 1)
        y = y.gather(1, back.clamp(0, 63).unsqueeze(-1).expand(-1, -1, 96))
        return self.out(self.decoder(y)), back >= 16


model = Hidden().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False, weight_decay=0.05)


def step():
    x = torch.randn(24, 3, 64, 64, device=device)
    target = F.unfold(x, 8, stride=8).transpose(1, 2)
    mean, spread = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
    made, hidden = model(x)
    loss = ((made - (target - mean) / (spread + 1e-6).sqrt()) ** 2).mean(-1)
    loss = (loss * hidden).sum() / hidden.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SAVED = """
model = nn.Sequential(
    nn.Linear(300, 1024),
    nn.GELU(),
    *(nn.Sequential(nn.LayerNorm(1024), nn.Linear(1024, 1024), nn.GELU()) for _ in range(3)),
    nn.Linear(1024, 50),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    x = torch.randn(512, 300, device="cuda")
    if True:
        loss = F.cross_entropy(model(x), torch.zeros(512, dtype=torch.long, device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SAVED_ON_HOST = SAVED.replace("if True:", "with torch.autograd.graph.save_on_cpu(pin_memory=True):")

MORE = (
    Script("speech, packed GRU, CTC", SPEECH),
    Script("tags, LSTM with projection, CRF", TAGS),
    Script("DQN with LSTM cell, huber", PLAYER),
    Script("recommendations, bags, Adagrad", BAGS),
    Script("contrast, evaluated", QUEUE_EVALUATED),
    Script("contrast, in no_grad", QUEUE_NO_GRAD, "contrast, evaluated"),
    Script("segmentation, fp32", SEGMENTED),
    Script("segmentation, fp16", SEGMENTED_HALVES, "segmentation, fp32"),
    Script("masked image, AdamW loop", HIDDEN_PATCHES),
    Script("saved on the device", SAVED),
    Script("saved on the host", SAVED_ON_HOST, "saved on the device"),
)
