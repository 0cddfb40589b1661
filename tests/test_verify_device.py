"""What a training script asks of CUDA, asked of the emulated device in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

# Each case: code that ends in an expression, and its value as text.
CASES = {
    "factory": ("torch.zeros(3, device='cuda').device", "cuda:0"),
    "remainder by a number": (
        "x = torch.tensor([7, 8, 9]).cuda(); ((x % 4).tolist(), (x % 2.5).dtype, x.is_cuda)",
        "([3, 0, 1], torch.float32, True)",
    ),
    "bits with a number": (
        "x = torch.tensor([6, 5]).cuda(); y = (1 << x) & 96; y |= 1; (y.tolist(), y.device.type)",
        "([65, 33], 'cuda')",
    ),
    "remainder without gradients": (
        "with torch.inference_mode(): y = torch.fmod(torch.tensor([7.0]).cuda(), 4)\ny.tolist()",
        "[3.0]",
    ),
    "factory on the host": ("torch.zeros(3).device", "cpu"),
    "tensor": ("torch.tensor([1.0], device='cuda', requires_grad=True).is_cuda", "True"),
    "tensor with requires_grad": (
        "torch.tensor([1.0], device='cuda', requires_grad=True).is_leaf",
        "True",
    ),
    "as_tensor": ("torch.as_tensor([1, 2], device='cuda:0').device", "cuda:0"),
    "like": ("torch.zeros_like(torch.ones(2), device='cuda').device", "cuda:0"),
    "new_zeros": ("torch.ones(2, device='cuda').new_zeros(2).device", "cuda:0"),
    "new_tensor": ("torch.ones(2, device='cuda').new_tensor([1.0]).device", "cuda:0"),
    "to and back": ("torch.ones(2).cuda().cpu().device", "cpu"),
    "to other": ("torch.ones(2).to(torch.ones(1, device='cuda')).device", "cuda:0"),
    "to the same device is the same tensor": (
        "x = torch.ones(2, device='cuda'); x.to('cuda') is x and x.cuda() is x",
        "True",
    ),
    "to with a dtype": ("torch.ones(2).to('cuda', torch.float16).dtype", "torch.float16"),
    "module": ("torch.nn.Linear(2, 2).to('cuda').weight.device", "cuda:0"),
    "module keeps its parameters": (
        "m = torch.nn.Linear(2, 2); w = m.weight; m.cuda(); m.weight is w and w.is_cuda",
        "True",
    ),
    "a storage that is emptied and filled again in place": (
        "def held(): return torch.cuda.memory_allocated()\n"
        "x = torch.ones(1024, device='cuda'); s = x.untyped_storage(); sizes = [held()]\n"
        "s.resize_(0); sizes.append(held()); s.resize_(4096); sizes.append(held()); sizes",
        "[4096, 0, 4096]",
    ),
    "module made there": ("torch.nn.Linear(2, 2, device='cuda').bias.get_device()", "0"),
    "default device": (
        "torch.set_default_device('cuda'); d = torch.tensor([1]).device, torch.zeros(1).device; "
        "torch.set_default_device(None); d",
        "(device(type='cuda', index=0), device(type='cuda', index=0))",
    ),
    "device context": (
        "with torch.device('cuda'):\n    d = torch.nn.Linear(2, 2).weight.device\nd",
        "cuda:0",
    ),
    "results": ("(torch.ones(2, device='cuda') * 2 + 1).sin().sum().device", "cuda:0"),
    "views": ("torch.ones(4, device='cuda').view(2, 2)[0].t().device", "cuda:0"),
    "written into a host tensor": (
        "h = torch.zeros(2); h.copy_(torch.ones(2, device='cuda')); h.device, h.sum().item()",
        "(device(type='cpu'), 2.0)",
    ),
    "second device": ("torch.zeros(1, device='cuda:1')", "AcceleratorError"),
    "numpy": ("torch.ones(1, device='cuda').numpy()", "TypeError"),
    "type": ("torch.ones(1, device='cuda').type()", "torch.cuda.FloatTensor"),
    "deepcopy": (
        "copy.deepcopy(torch.nn.Linear(2, 2).cuda()).weight.device",
        "cuda:0",
    ),
    "gradient": (
        "m = torch.nn.Linear(2, 2).cuda(); m(torch.ones(1, 2).cuda()).sum().backward(); "
        "m.weight.grad.device",
        "cuda:0",
    ),
    "hook in the backward pass": (
        "seen = []; x = torch.ones(2, device='cuda', requires_grad=True); y = x * 2\n"
        "y.register_hook(lambda g: seen.append((g.device, torch.zeros(1, device='cuda').device)))\n"
        "y.sum().backward(); seen",
        "[(device(type='cuda', index=0), device(type='cuda', index=0))]",
    ),
    "custom function": (
        "class F(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x): ctx.save_for_backward(x); return x * 2\n"
        "    @staticmethod\n    def backward(ctx, g): return g * ctx.saved_tensors[0].is_cuda\n"
        "x = torch.ones(2, device='cuda', requires_grad=True); F.apply(x).sum().backward(); "
        "x.grad.sum().item()",
        "2.0",
    ),
    "thread": (
        "got = []; t = threading.Thread(target=lambda: got.append("
        "(torch.zeros(1, device='cuda') + 1).device)); t.start(); t.join(); got",
        "[device(type='cuda', index=0)]",
    ),
    "checkpoint, reentrant": (
        "x = torch.ones(2, 2, device='cuda', requires_grad=True)\n"
        "checkpoint(torch.nn.Linear(2, 2).cuda(), x, use_reentrant=True).sum().backward()\n"
        "x.grad.device",
        "cuda:0",
    ),
    "checkpoint": (
        "x = torch.ones(2, 2, device='cuda', requires_grad=True)\n"
        "checkpoint(torch.nn.Linear(2, 2).cuda(), x, use_reentrant=False).sum().backward()\n"
        "x.grad.device",
        "cuda:0",
    ),
    "attention": (
        "torch.nn.MultiheadAttention(8, 2).cuda()(*[torch.ones(3, 1, 8).cuda()] * 3)[0].device",
        "cuda:0",
    ),
    "save and load": (
        "b = io.BytesIO(); torch.save(torch.nn.Linear(2, 2).cuda().state_dict(), b); b.seek(0)\n"
        "torch.load(b)['weight'].device",
        "cuda:0",
    ),
    "load to the host": (
        "b = io.BytesIO(); torch.save(torch.ones(2).cuda(), b); b.seek(0)\n"
        "torch.load(b, map_location='cpu').device",
        "cpu",
    ),
    "load to the device": (
        "b = io.BytesIO(); torch.save(torch.ones(2), b); b.seek(0)\n"
        "torch.load(b, map_location='cuda').device",
        "cuda:0",
    ),
    "generator": (
        "g = torch.Generator('cuda').manual_seed(3); "
        "g.device, torch.rand(1, device='cuda', generator=g).device",
        "(device(type='cuda'), device(type='cuda', index=0))",
    ),
    "loader with workers and pinned memory": (
        "[b[0].cuda(non_blocking=True).sum().item() for b in torch.utils.data.DataLoader("
        "torch.utils.data.TensorDataset(torch.ones(4, 2)), 2, num_workers=1, pin_memory=True)]",
        "[4.0, 4.0]",
    ),
    "events": (
        "a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)\n"
        "a.record(); b.record(); torch.cuda.synchronize(); a.elapsed_time(b) >= 0",
        "True",
    ),
    "stream": (
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    x = torch.ones(1).cuda()\n"
        "torch.cuda.current_stream().wait_stream(s); x.record_stream(s); x.item()",
        "1.0",
    ),
    "properties": (
        "torch.cuda.is_available(), torch.cuda.device_count(), "
        "torch.cuda.get_device_properties(0).total_memory, torch.cuda.mem_get_info()[1]",
        "(True, 1, 1073741824, 1073741824)",
    ),
    "compile runs eagerly": (
        "torch.compile(torch.nn.Linear(2, 2).cuda(), mode='max-autotune')(torch.ones(1, 2).cuda())"
        ".device",
        "cuda:0",
    ),
    "autocast lowers a product": (
        "with torch.autocast('cuda'):\n    d = (torch.ones(2, 2).cuda() @ torch.ones(2, 2).cuda()"
        ").dtype\nd, torch.is_autocast_enabled()",
        "(torch.float16, False)",
    ),
    "autocast in bfloat16": (
        "with torch.autocast('cuda', dtype=torch.bfloat16):\n"
        "    d = torch.nn.Linear(2, 2).cuda()(torch.ones(2, 2).cuda()).dtype\nd",
        "torch.bfloat16",
    ),
    "autocast keeps softmax, norms and sums in float32": (
        "x = torch.ones(2, 4, device='cuda', dtype=torch.float16)\n"
        "with torch.autocast('cuda'):\n"
        "    d = {x.softmax(-1).dtype, x.sum().dtype, x.exp().dtype, x.pow(2).dtype,\n"
        "         torch.nn.functional.layer_norm(x, (4,)).dtype, x.log_softmax(-1).dtype}\nd",
        "{torch.float32}",
    ),
    "bytes of a tensor": (
        "torch.cuda.empty_cache(); before = torch.cuda.memory_allocated()\n"
        "x = torch.ones(1000, device='cuda'); after = torch.cuda.memory_allocated()\n"
        "y = x.view(10, 100); z = x[:10]; same = torch.cuda.memory_allocated(); del x, y, z\n"
        "after - before, same - after, torch.cuda.memory_allocated() - before",
        "(4096, 0, 0)",
    ),
    "bytes of Adam": (
        "before = torch.cuda.memory_allocated()\n"
        "m = torch.nn.Linear(256, 256, bias=False, device='cuda')\n"
        "o = torch.optim.Adam(m.parameters()); m(torch.ones(1, 256).cuda()).sum().backward()\n"
        "o.step(); (torch.cuda.memory_allocated() - before) // (256 * 256 * 4)",
        "4",  # parameter, gradient and two moments
    ),
    "saved tensors live in the graph": (
        "x = torch.ones(1000, device='cuda', requires_grad=True)\n"
        "before = torch.cuda.memory_allocated(); y = x.exp().exp().sum()\n"
        "held = torch.cuda.memory_allocated() - before; y.backward(); x.grad = None\n"
        "held, torch.cuda.memory_allocated() - before",
        "(8704, 512)",
    ),
    "dropout saves a mask of one byte": (
        "x = torch.ones(4096, device='cuda', requires_grad=True)\n"
        "before = torch.cuda.memory_allocated(); y = torch.nn.functional.dropout(x)\n"
        "torch.cuda.memory_allocated() - before",
        str(4096 * 4 + 4096),
    ),
    "out of memory": ("torch.empty(2 << 30, dtype=torch.uint8, device='cuda')", "OutOfMemoryError"),
    "memory after out of memory": (
        "try: torch.empty(2 << 30, dtype=torch.uint8, device='cuda')\n"
        "except torch.cuda.OutOfMemoryError as e: said = str(e)\nsaid[:46]",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
    ),
    "a scaler that skips": (
        "w = torch.nn.Parameter(torch.ones(1, device='cuda')); o = torch.optim.SGD([w], lr=1.0)\n"
        "s = torch.amp.GradScaler('cuda'); s.scale(w * float('inf')).backward(); s.step(o); "
        "s.update(); s.get_scale(), w.item()",
        "(32768.0, 1.0)",
    ),
    "a layer and its input on two devices": (
        "try: torch.nn.Linear(2, 2).cuda()(torch.ones(1, 2))\n"
        "except RuntimeError as error: said = str(error)\nsaid",
        "Expected all tensors to be on the same device, but got mat1 is on cpu, different from "
        "other tensors on cuda:0 (when checking argument in method wrapper_CUDA_addmm)",
    ),
    "a sum over two devices": (
        "try: torch.ones(2, device='cuda') + torch.ones(2)\n"
        "except RuntimeError as error: said = str(error)\nsaid",
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
        "and cpu!",
    ),
    "a number from the host": ("(torch.ones(2).cuda() + torch.tensor(1.0)).sum().item()", "4.0"),
    "an index from the host": ("torch.ones(4).cuda()[torch.tensor([0, 1])].device", "cuda:0"),
    "made from nothing in C++": (
        "torch.nn.functional.one_hot(torch.tensor([1]).cuda(), 3).device",
        "cuda:0",
    ),
    "like another, on the host": (
        "x = torch.ones(2).cuda(); torch.zeros_like(x, device='cpu').device, "
        "x.new_ones(3, device='cpu').device",
        "(device(type='cpu'), device(type='cpu'))",
    ),
    "a packed sequence": (
        "p = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 4).cuda(), "
        "torch.tensor([3, 2]), batch_first=True)\n"
        "p.data.device, p.batch_sizes.device",
        "(device(type='cuda', index=0), device(type='cpu'))",
    ),
    "inference keeps no graph and its workspaces": (
        "with torch.inference_mode(): y = torch.nn.Linear(4, 4).cuda()(torch.ones(2, 4).cuda())\n"
        "y.device, y.requires_grad",
        "(device(type='cuda', index=0), False)",
    ),
    "pinned memory": (
        "torch.ones(2).pin_memory().is_pinned(), torch.ones(2, pin_memory=True).is_pinned(), "
        "torch.ones(2).is_pinned()",
        "(True, True, False)",
    ),
    "an event without a time": (
        "torch.cuda.Event().elapsed_time(torch.cuda.Event())",
        "ValueError",
    ),
    "a device that is not there": ("torch.cuda.get_device_name(1)", "AssertionError"),
    "legacy types": (
        "x = torch.cuda.FloatTensor([1.0]); x.device, isinstance(x, torch.cuda.FloatTensor)",
        "(device(type='cuda', index=0), True)",
    ),
    "autocast gives losses of a cross entropy the logits' precision first": (
        "x = torch.ones(2, 4, device='cuda', dtype=torch.float16)\n"
        "with torch.autocast('cuda'):\n"
        "    d = (x.log_softmax(-1, dtype=torch.float16).dtype, x.mean().dtype,\n"
        "         torch.nn.functional.mse_loss(x, x).dtype,\n"
        "         torch.nn.functional.interpolate(x[None], scale_factor=2).dtype)\nd",
        "(torch.float16, torch.float16, torch.float32, torch.float32)",
    ),
    "a number names the device": (
        "p = torch.nn.Linear(2, 2, device=0).weight, torch.nn.Linear(2, 2).to(0).weight\n"
        "x = torch.zeros(2, device=0), torch.arange(2, device=0), torch.tensor([1], device=0)\n"
        "{t.device for t in (*p, *x)}, torch.device(0), isinstance(torch.device(0), torch.device)",
        "({device(type='cuda', index=0)}, device(type='cuda', index=0), True)",
    ),
    "TorchScript knows what makes a device": (
        "torch.jit._builtins._find_builtin(torch.device)",
        "aten::device",
    ),
    "a number as the default device": (
        "torch.set_default_device(0); d = torch.zeros(1).device; torch.set_default_device(None)\n"
        "with torch.device(0): e = torch.ones(1).device\n(d, e, torch.zeros(1).device)",
        "(device(type='cuda', index=0), device(type='cuda', index=0), device(type='cpu'))",
    ),
    "a device by number survives pickling": (
        "import pickle; pickle.loads(pickle.dumps(torch.device(0)))",
        "cuda:0",
    ),
    "questions about a device that is not there": (
        "said = []\nfor ask in (torch.cuda.memory_allocated, torch.cuda.memory_stats,"
        " torch.cuda.current_stream, torch.cuda.get_device_properties):\n"
        "    for device in (1, 'cpu'):\n"
        "        try: ask(device)\n"
        "        except Exception as error: said.append(type(error).__name__)\nsaid",
        str(["RuntimeError", "ValueError"] * 3 + ["AssertionError", "ValueError"]),
    ),
    "loading what lay on another device": (
        "b = io.BytesIO(); torch.save(torch.ones(2), b); b.seek(0)\n"
        "try: torch.load(b, map_location='cuda:1')\n"
        "except RuntimeError as error: said = str(error)\nsaid[:82]",
        "Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is",
    ),
    "the state of CUDA's generator": (
        "g = torch.Generator('cuda').manual_seed(5); torch.rand(3, device='cuda', generator=g)\n"
        "state = g.get_state(); a = torch.rand(3, device='cuda', generator=g)\n"
        "g.set_state(state); b = torch.rand(3, device='cuda', generator=g)\n"
        "state.tolist(), g.get_offset(), a.equal(b), g.clone_state().initial_seed()",
        str(([5, *[0] * 7, 4, *[0] * 7], 8, True, 5)),
    ),
    "a state of the other device": (
        "said = []\nfor put, state in ((torch.cuda.set_rng_state, torch.get_rng_state()),"
        " (torch.set_rng_state, torch.cuda.get_rng_state())):\n"
        "    try: put(state)\n"
        "    except RuntimeError as error: said.append(str(error)[:40])\nsaid",
        "['RNG state is wrong size', 'Expected a CPUGeneratorImplState of size']",
    ),
    "a generator of the other device": (
        "h, g, said = torch.Generator(), torch.Generator('cuda'), []\n"
        "for draw in (lambda: torch.rand(2, device='cuda', generator=h),"
        " lambda: torch.ones(2).normal_(generator=g),"
        " lambda: torch.randperm(4, device='cuda', generator=h),"
        " lambda: list(torch.utils.data.DataLoader([1, 2], shuffle=True, generator=g))):\n"
        "    try: draw()\n"
        "    except RuntimeError as error: said.append(str(error))\n"
        "[line.split()[2] + line.split()[-1] for line in said], said[0]",
        "([\"'cuda''cpu'\", \"'cpu''cuda'\", \"'cuda''cpu'\", \"'cpu''cuda'\"], "
        "\"Expected a 'cuda' device type for generator but found 'cpu'\")",
    ),
    "what the device draws leaves the host's numbers alone": (
        "torch.manual_seed(0); a = torch.rand(1)\ntorch.manual_seed(0)\n"
        "torch.nn.functional.dropout(torch.rand(5, device='cuda')); b = torch.rand(1)\n"
        "a.equal(b), torch.cuda.initial_seed()",
        "(True, 0)",
    ),
    "a checkpoint drops the same values again": (
        "x = torch.ones(64, device='cuda', requires_grad=True)\n"
        "def drop(x): return torch.nn.functional.dropout(x.sin())\n"
        "y = checkpoint(drop, x, use_reentrant=False); torch.rand(3, device='cuda')\n"
        "y.sum().backward(); bool(((y != 0) == (x.grad != 0)).all())",
        "True",
    ),
    "streams and events of any accelerator": (
        "s, e = torch.Stream('cuda'), torch.Event('cuda')\n"
        "isinstance(torch.cuda.Stream(), torch.Stream), isinstance(e, torch.cuda.Event), s.device",
        "(True, True, device(type='cuda', index=0))",
    ),
    "waiting for the device is refused where it may not be": (
        "torch.cuda.set_sync_debug_mode('error')\n"
        "try: torch.ones(1, device='cuda').item()\n"
        "except RuntimeError as error: said = str(error)\n"
        "torch.cuda.set_sync_debug_mode(0); said, torch.cuda.get_sync_debug_mode()",
        "('called a synchronizing CUDA operation', 0)",
    ),
    "graphs are refused, graphed callables run": (
        "f = torch.cuda.make_graphed_callables(torch.sin, (torch.ones(1, device='cuda'),))\n"
        "try: torch.cuda.graph(torch.cuda.CUDAGraph())\n"
        "except RuntimeError as error: said = str(error)\n"
        "said[:56], f(torch.zeros(1, device='cuda')).item()",
        "('CUDA graphs are not modelled by the emulated device: wha', 0.0)",
    ),
    "sparse tensors made there": (
        "s = torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device='cuda')\n"
        "c = torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), device=0)\n"
        "z = torch.sparse_coo_tensor((3, 4), device='cuda')\n"
        "[t.device.type for t in (s, c, z)], s._indices().is_cuda, s.to_dense().tolist()",
        "(['cuda', 'cuda', 'cuda'], True, [1.0, 2.0, 0.0])",
    ),
    "bytes of a sparse tensor": (
        "i, v = torch.zeros(1, 1000, dtype=torch.long), torch.ones(1000)\n"
        "before = torch.cuda.memory_allocated()\n"
        "s = torch.sparse_coo_tensor(i, v, (3000,), device='cuda')\n"
        "torch.cuda.memory_allocated() - before",
        "12288",
    ),
    "a sparse tensor of two devices": (
        "try: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1).cuda(), (3,))\n"
        "except RuntimeError as error: said = str(error)\nsaid[:76]",
        "Expected all tensors to be on the same device, but got values is on cuda:0, ",
    ),
    "a gradient, a result and values from the host": (
        "x, said = torch.ones(2, device='cuda', requires_grad=True), []\n"
        "def put(): x.grad = torch.ones(2)\n"
        "def fill(): x.detach()[torch.tensor([True, True])] = torch.ones(2)\n"
        "for do in (put, fill, lambda: torch.add(x.detach(), 1, out=torch.empty(2))):\n"
        "    try: do()\n"
        "    except RuntimeError as error: said.append(' '.join(str(error).split()[:4]))\nsaid",
        "['attempting to assign a', 'Expected all tensors to', 'Expected all tensors to']",
    ),
    "memory without a tensor": (
        "before = torch.cuda.memory_allocated(); p = torch.cuda.caching_allocator_alloc(1000)\n"
        "held = torch.cuda.memory_allocated() - before; torch.cuda.caching_allocator_delete(p)\n"
        "held, torch.cuda.memory_allocated() - before",
        "(1024, 0)",
    ),
    "legacy defaults and conversions": (
        "torch.set_default_tensor_type(torch.cuda.HalfTensor); a = torch.ones(1).type()\n"
        "torch.set_default_tensor_type(torch.FloatTensor)\n"
        "a, torch.ones(1).type(torch.cuda.HalfTensor).type(), torch.ones(1).cuda().new(2).is_cuda",
        "('torch.cuda.HalfTensor', 'torch.cuda.HalfTensor', True)",
    ),
    "what it was built for": (
        "torch.version.cuda, torch.backends.cuda.is_built(), torch.backends.cudnn.is_available()",
        "('13.0', True, True)",
    ),
    "a scaler that steps": (
        "w = torch.nn.Parameter(torch.ones(1, device='cuda')); o = torch.optim.SGD([w], lr=1.0)\n"
        "s = torch.cuda.amp.GradScaler(); s.scale(w * 2).backward(); s.unscale_(o)\n"
        "g = w.grad.item(); s.step(o); s.update(); g, w.item(), s.get_scale()",
        "(2.0, -1.0, 65536.0)",
    ),
}

PROGRAM = """
import ast, copy, io, json, sys, threading, warnings
warnings.simplefilter("ignore")
import torch
from torch.utils.checkpoint import checkpoint
from oomlint.verify import emulation
emulation.install(capacity=1 << 30)
answers = {}
for name, code in json.load(sys.stdin).items():
    tree = ast.parse(code)
    last = ast.Expression(tree.body.pop().value)
    names = dict(globals())
    try:
        exec(compile(tree, name, "exec"), names)
        answers[name] = str(eval(compile(last, name, "eval"), names))
    except Exception as error:
        answers[name] = type(error).__name__
    del names
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    questions = json.dumps({name: code for name, (code, _) in CASES.items()})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=questions,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_device_answers_as_cuda_does(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == CASES[name][1]


# Each case: code, and what then stands for torch's compiler.
WITHOUT_COMPILER = {
    "an import that looks through all modules": (
        "torch.testing.assert_close(torch.ones(1).cuda(), torch.ones(1).cuda())",
        "Dormant",
    ),
    "a data-parallel model and a checkpoint": (
        "from torch import distributed\n"
        "from torch.utils.checkpoint import checkpoint\n"
        "store = distributed.HashStore()\n"
        "distributed.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())\n"
        "checkpoint(model, torch.ones(1, 2).cuda(), use_reentrant=False).sum().backward()\n"
        "assert model.module.weight.grad is not None",
        "Dormant",
    ),
    "a setting of the compiler": (
        "import torch._dynamo\n"
        "torch._dynamo.config.suppress_errors = True\n"
        "assert torch._dynamo.config.suppress_errors",
        "module",
    ),
}


@pytest.mark.parametrize("name", WITHOUT_COMPILER)
def test_the_compiler_is_loaded_only_for_what_it_alone_can_do(name: str) -> None:
    code, kind = WITHOUT_COMPILER[name]
    program = (
        "from oomlint.verify import emulation\n"
        "emulation.install(capacity=1 << 30)\n"
        "import sys, torch\n"
        f"{code}\n"
        "print(type(sys.modules['torch._dynamo']).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == f"{kind}\n", done.stderr
