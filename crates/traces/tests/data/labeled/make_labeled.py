"""Records training runs with PyTorch's CUDA allocator and the true category of every allocation.

No GPU is needed: `stand_in.cc` takes the place of the CUDA driver, the CUDA runtime and cuBLAS. The allocator, the
recording and the stacks are PyTorch's own. Written with torch 2.15.0 (CUDA 13.2) and transformers 5.24.0:

    include=$(python -c 'import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))')/nvidia/cu13/include
    g++ -std=c++17 -O1 -w -fPIC -shared -I$include stand_in.cc -o libcuda.so.1 -Wl,-soname,libcuda.so.1
    for model in cnn gpt2 lstm encoder; do for stacks in all python; do
        LD_PRELOAD=$PWD/libcuda.so.1 python make_labeled.py $model $stacks
    done; done

Each run writes MODEL-STACKS.pickle.gz, the file of torch.cuda.memory._dump_snapshot, and MODEL.labels: a letter for
each event `alloc`, in order, and after a line end one for each live block that has no such event, by address.

    P parameter or buffer   G gradient   O optimizer state   A saved for the backward pass   I input   T others
"""

import bisect
import gzip
import io
import os
import pickle
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

ORDER = "TAIGPO"  # A later letter replaces an earlier one.


class Labels:
    """Notes which storages play which part, at the moments at which that is known."""

    def __init__(self):
        self.notes = []

    def note(self, letter, tensors):
        # The number of allocations so far distinguishes tensors that had the same address one after the other.
        count = torch.cuda.memory_stats()["allocation.all.allocated"]
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda and tensor.untyped_storage().nbytes() > 0:
                self.notes.append((count, tensor.untyped_storage().data_ptr(), letter))

    def saved(self):
        """Notes the tensors that autograd saves, also those that a checkpoint computes again, but none that it drops."""
        base = torch.autograd.graph.saved_tensors_hooks
        labels, original = self, base.__init__

        def init(hooks, pack, unpack):
            def noted(tensor):
                packed = pack(tensor)
                if isinstance(packed, torch.Tensor):
                    labels.note("A", [tensor])
                return packed

            original(hooks, noted, unpack)

        base.__init__ = init
        return base(lambda tensor: tensor, lambda tensor: tensor)


class Run:
    """One training run: its labels, and the start of the recording."""

    def __init__(self, stacks):
        self.labels = Labels()
        self.stacks = stacks
        self.first = None

    def record(self):
        self.first = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=self.stacks)

    def state(self, model, optimizer=None):
        self.labels.note("P", [*model.parameters(), *model.buffers()])
        self.labels.note("G", [parameter.grad for parameter in model.parameters()])
        if optimizer:
            self.labels.note("O", [value for state in optimizer.state.values() for value in state.values()])

    def write(self, name):
        snapshot = torch.cuda.memory._snapshot()
        events = snapshot["device_traces"][0]
        places, letters, by_address = [], [], {}
        for event in events:
            if event["action"] == "alloc":
                by_address.setdefault(event["addr"], []).append((self.first + len(places), len(places)))
                places.append(event["addr"])
        letters = ["T"] * len(places)
        before = {}
        for count, address, letter in self.labels.notes:
            history = by_address.get(address, [])
            # The last allocation at this address before the note.
            index = bisect.bisect_left(history, (count, -1)) - 1
            if index >= 0:
                place = history[index][1]
                letters[place] = max(letters[place], letter, key=ORDER.index)
            else:
                before[address] = max(before.get(address, "T"), letter, key=ORDER.index)
        old = []
        for segment in snapshot["segments"]:
            for block in segment["blocks"]:
                if block["state"].startswith("active") and block["address"] not in by_address:
                    old.append((block["address"], before.get(block["address"], "T")))
        with open(f"{name}.labels", "w") as file:
            file.write("".join(letters) + "\n" + "".join(letter for _, letter in sorted(old)) + "\n")
        scrub(snapshot)
        buffer = io.BytesIO()
        pickle.dump(snapshot, buffer)
        with open(f"{name}-{self.stacks}.pickle.gz", "wb") as file:
            file.write(gzip.compress(buffer.getvalue(), 9, mtime=0))


def scrub(snapshot):
    """Replaces the folders of this machine, and shares equal frames and stacks, as PyTorch's own writer does."""
    site, own = os.path.dirname(os.path.dirname(torch.__file__)), os.path.dirname(os.path.abspath(__file__))
    frames, stacks = {}, {}

    def frame(old):
        path = old["filename"].replace(site, "/usr/lib/python3.11/site-packages").replace(own, "/home/user/project")
        path = path.replace(os.path.basename(__file__), "train.py")
        new = {**old, "filename": path}
        return frames.setdefault((path, old["line"], old["name"]), new)

    def shared(holder):
        if "frames" in holder:
            stack = [frame(one) for one in holder["frames"]]
            holder["frames"] = stacks.setdefault(tuple(id(one) for one in stack), stack)

    for event in [event for trace in snapshot["device_traces"] for event in trace]:
        shared(event)
    for segment in snapshot["segments"]:
        shared(segment)
        for block in segment["blocks"]:
            shared(block)


class Residual(nn.Module):
    def __init__(self, width, stride=1):
        super().__init__()
        self.first = nn.Conv2d(width // stride, width, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Conv2d(width // stride, width, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)))
        return F.relu(self.norm2(self.second(y)) + self.shortcut(x))


def cnn(run):
    """A residual network: SGD with momentum, gradients that are set to zero in place, an evaluation after each epoch."""
    run.record()
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        Residual(32), Residual(64, 2), Residual(128, 2), Residual(256, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(256, 1000),
    ).cuda()
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    data = torch.utils.data.TensorDataset(torch.randn(32, 3, 32, 32), torch.zeros(32, dtype=torch.long))
    for epoch in range(2):
        model.train()
        for images, labels in torch.utils.data.DataLoader(data, batch_size=16):
            images, labels = images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
            run.labels.note("I", [images, labels])
            optimizer.zero_grad(set_to_none=False)
            loss = loss_of(model(images), labels)
            loss.backward()
            run.state(model, optimizer)
            optimizer.step()
            run.state(model, optimizer)
        model.eval()
        with torch.no_grad():
            images = images[:8].cpu().cuda()
            run.labels.note("I", [images])
            model(images).argmax(1).sum().item()
    return locals()


def gpt2(run):
    """A GPT-2 of the library transformers: AdamW, clipped gradients, a schedule, the loss read in each step."""
    import transformers

    run.record()
    config = transformers.GPT2Config(vocab_size=4000, n_positions=256, n_embd=256, n_layer=4, n_head=4)
    model = transformers.GPT2LMHeadModel(config).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    model.train()
    for length in (128, 160, 96):
        batch = {"input_ids": torch.zeros(4, length, dtype=torch.long)}
        batch["labels"] = batch["input_ids"].clone()
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        run.labels.note("I", batch.values())
        output = model(**batch)
        output.loss.backward()
        run.state(model, optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        run.state(model, optimizer)
        optimizer.zero_grad()
        output.loss.item()
    return locals()


class Tagger(nn.Module):
    def __init__(self, words=3000, width=192):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.output = nn.Linear(width, 200)

    def forward(self, words):
        return self.output(self.lstm(self.embedding(words))[0])


def lstm(run):
    """An LSTM: Adam, two micro-batches for each step. The recording starts in the middle of the run."""
    model = Tagger().to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        if step == 1:
            run.record()
        optimizer.zero_grad()
        for _ in range(2):
            words = torch.zeros(24, 10, dtype=torch.long).to("cuda")
            tags = torch.zeros(24, 10, dtype=torch.long).to("cuda")
            run.labels.note("I", [words, tags])
            loss = F.cross_entropy(model(words).flatten(0, 1), tags.flatten()) / 2
            loss.backward()
            run.state(model, optimizer)
        optimizer.step()
        run.state(model, optimizer)
    return locals()


def encoder(run):
    """A transformer encoder in mixed precision whose layers are checkpoints, with a frozen embedding."""
    from torch.utils.checkpoint import checkpoint

    run.record()
    with torch.device("cuda"):
        embedding = nn.Embedding(6000, 256)
        layers = nn.ModuleList(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True) for _ in range(4))
        head = nn.Linear(256, 6000)
    embedding.requires_grad_(False)
    model = nn.ModuleList([embedding, layers, head])
    optimizer = torch.optim.RMSprop([p for p in model.parameters() if p.requires_grad], lr=1e-4, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        tokens = torch.zeros(8, 96, dtype=torch.long, pin_memory=True).cuda(non_blocking=True)
        run.labels.note("I", [tokens])
        with torch.autocast("cuda", torch.float16):
            hidden = embedding(tokens)
            for layer in layers:
                hidden = checkpoint(layer, hidden, use_reentrant=False)
            loss = F.cross_entropy(head(hidden).flatten(0, 1), tokens.flatten())
        scaler.scale(loss).backward()
        run.state(model, optimizer)
        scaler.step(optimizer)
        scaler.update()
        run.state(model, optimizer)
        optimizer.zero_grad()
    return locals()


if __name__ == "__main__":
    name, stacks = sys.argv[1:]
    torch.manual_seed(1)
    torch.backends.cudnn.enabled = False
    torch.cuda.init()
    run = Run(stacks)
    with run.labels.saved():
        # The model and the optimizer live when the snapshot is taken.
        kept = {"cnn": cnn, "gpt2": gpt2, "lstm": lstm, "encoder": encoder}[name](run)
    run.write(name)
