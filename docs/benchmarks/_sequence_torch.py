"""Peers of the benchmark of sequences in PyTorch: SASRec by full cross entropy, and the network that pymc_ep trains.

    PYTHON _sequence_torch.py GIVEN.npz FOUND.npz

runs under an interpreter that has torch, and imports neither pymc_ep nor other benchmarks. `items` and `lengths` are
the training sequences, `tail` is the number of events at the end of each that choices are made by, `settings` are JSON.
"""

import json
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CONTEXT, CHUNKS = 100, 16
"""Events that SASRec attends to, and sequences of so many in a step."""


class SASRec(nn.Module):
    """Causal self-attention over items and places (Kang and McAuley 2018); items to come share these embeddings."""

    def __init__(self, n_items: int, width: int, blocks: int, heads: int, dropout: float):
        super().__init__()
        self.items, self.places = nn.Embedding(n_items + 1, width), nn.Embedding(CONTEXT, width)
        for table in (self.items, self.places):
            nn.init.normal_(table.weight, std=width**-0.5)
        self.bias, self.dropout = nn.Parameter(torch.zeros(n_items)), nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, width, dropout, batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, before: torch.Tensor) -> torch.Tensor:
        """Return what predicts each event, (n, T, width), from the items before it, (n, T)."""
        n = before.shape[1]
        h = self.dropout(self.items(before) + self.places.weight[:n])
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.norm(h)

    def log_p(self, h: torch.Tensor) -> torch.Tensor:
        """Return the log probabilities of all items."""
        return functional.log_softmax(h @ self.items.weight[:-1].T + self.bias, dim=-1)


def chunks_of(sequences, begins, stride, n_items, shift=0):
    """Return inputs and targets, (n, CONTEXT), of events from `begins` on: -1 for others, and item I for a start.

    Chunks are in the order of time; `shift`, below the stride, moves where they begin.
    """
    inputs, targets = [], []
    for own, begin in zip(sequences, begins):
        before, n = np.append(n_items, own[:-1]), len(own)
        for end in range(n + shift, begin, -stride)[::-1]:
            stop = min(end, n)
            first = max(0, stop - CONTEXT)
            fresh = max(begin, end - stride)
            inputs.append(np.zeros(CONTEXT, dtype=np.int64))
            targets.append(np.full(CONTEXT, -1))
            inputs[-1][: stop - first] = before[first:stop]
            targets[-1][fresh - first : stop - first] = own[fresh:stop]
    return torch.from_numpy(np.array(inputs)), torch.from_numpy(np.array(targets))


def predicted(model, sequences, begins, n_items):
    """Return what predicts the events from `begins` on, (n, width), and their log probabilities, user by user."""
    inputs, targets = chunks_of(sequences, begins, CONTEXT // 2, n_items)
    states, log_p = [], []
    model.eval()
    with torch.no_grad():
        for some, wanted in zip(inputs.split(CHUNKS), targets.split(CHUNKS)):
            kept = wanted >= 0
            states.append(model(some)[kept])
            log_p.append(model.log_p(states[-1])[torch.arange(int(kept.sum())), wanted[kept]])
    model.train()
    return torch.cat(states).numpy(), torch.cat(log_p).numpy()


def sasrec(sequences, tail, test, n_items, settings, seed):
    """Train until the tails of the sequences get no likelier, and predict the test events."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = SASRec(n_items, settings["width"], settings["blocks"], settings["heads"], settings["dropout"])
    rule = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"])
    begins = np.array([len(s) for s in sequences]) - tail
    trained = [own[:n] for own, n in zip(sequences, begins)]
    best, best_epoch, weights, trace, began = np.inf, 0, None, [], time.process_time()
    for epoch in range(1, settings["epochs"] + 1):
        shift = int(rng.integers(CONTEXT))
        inputs, targets = chunks_of(trained, np.zeros_like(begins), CONTEXT, n_items, shift)
        for some in torch.from_numpy(rng.permutation(len(inputs))).split(CHUNKS):
            kept = targets[some] >= 0
            loss = functional.nll_loss(model.log_p(model(inputs[some])[kept]), targets[some][kept])
            rule.zero_grad()
            loss.backward()
            rule.step()
        trace.append(-float(predicted(model, sequences, begins, n_items)[1].mean(dtype=float)))
        print(epoch, trace[-1], time.process_time() - began, flush=True)
        if trace[-1] < best:
            best, best_epoch = trace[-1], epoch
            weights = {name: value.clone() for name, value in model.state_dict().items()}
        if epoch - best_epoch >= settings["patience"]:
            break
    seconds = time.process_time() - began
    model.load_state_dict(weights)
    both = [np.append(b, a) for b, a in zip(sequences, test)]
    states, _ = predicted(model, both, [len(s) for s in sequences], n_items)
    outputs, bias = model.items.weight[:-1].detach().numpy(), model.bias.detach().numpy()
    return {"states": states, "outputs": outputs, "bias": bias, "seconds": seconds, "trace": np.array(trace)}


def stepped(weights, gradient, moments, rate):
    """Change weights and the mean square of gradients by a step of RMSprop, with the same correction of its start."""
    second, count = moments
    count += 1
    second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    start = 1.0 - 0.99 ** count.view(-1, *[1] * (gradient.dim() - 1))
    weights.sub_(rate * gradient / ((second / start).sqrt() + 1e-8))


def products(matrices, h):
    """Return the products of matrices, (n or 1, k, D), and states, (n, D)."""
    return h @ matrices[0].T if len(matrices) == 1 else (matrices @ h[:, :, None])[:, :, 0]


def gru_states(matrices, inputs, items, counts, h):
    """Return the states that predict the events of a window, by time, and the last ones; matrices may be one set."""
    states, last, begin = [], h.clone(), 0
    for n in counts:
        h = h[:n]
        states.append(h)
        x, own = inputs[items[begin : begin + n]], matrices[:n]
        gates = torch.sigmoid(x[:, 1:] + products(own[:, 1:].flatten(1, 2), h).view(n, 2, -1))
        w, r = gates[:, 0], gates[:, 1]
        h = h + w * (torch.tanh(x[:, 0] + products(own[:, 0], r * h)) - h)
        last = torch.cat([h, last[n:]])
        begin += n
    return torch.cat(states), last


def gru(sequences, n_items, settings, seed, device="cpu"):
    """Train the GRU of matrices of users, or of all, as pymc_ep does; return the seconds and nats of each epoch.

    Seconds are those of the processor, and on another device those of the wall.
    """
    rng, D, pooled = np.random.default_rng(seed), settings["hidden"], settings.get("pooled", False)
    clock = time.process_time if device == "cpu" else time.perf_counter
    draw = lambda *shape: torch.from_numpy((D**-0.5 * rng.standard_normal(shape)).astype(np.float32)).to(device)  # noqa: E731
    recurrent = draw(1 if pooled else len(sequences), 3, D, D)
    inputs, outputs = draw(n_items, 3, D), draw(n_items, D)
    tables = [recurrent, inputs, outputs]
    moments = [(torch.zeros_like(t), torch.zeros(len(t), device=device)) for t in tables]
    lengths = np.array(list(map(len, sequences)))
    of_items = torch.from_numpy(np.maximum(1, np.bincount(np.concatenate(sequences), minlength=n_items))).to(device)
    most = np.sort(np.minimum(lengths, settings["batch"]))[-settings["users_per_batch"] :].sum()
    seconds, nats = [], []
    for epoch in range(settings["epochs"]):
        began, total = clock(), 0.0
        order = np.random.default_rng((seed, epoch)).permutation(len(sequences))
        for at in range(0, len(order), settings["users_per_batch"]):
            users = order[at : at + settings["users_per_batch"]]
            users = users[np.argsort(-lengths[users], kind="stable")]
            kept = slice(None) if pooled else torch.from_numpy(users).to(device)
            own, h = recurrent[kept], torch.full((len(users), D), 0.1, device=device)
            own_moments = tuple(part[kept] for part in moments[0])
            for begin in range(0, lengths[users[0]], settings["batch"]):
                active = users[lengths[users] > begin]
                parts = [sequences[u][begin : begin + settings["batch"]] for u in active]
                counts = [sum(len(p) > t for p in parts) for t in range(len(parts[0]))]
                items = np.array([parts[k][t] for t, n in enumerate(counts) for k in range(n)])
                items = torch.from_numpy(items).to(device)
                rows, local = torch.unique(items, return_inverse=True)
                n, m = len(active), len(items)
                leaves = [own[:n].clone(), inputs[rows], outputs.clone()]
                for leaf in leaves:
                    leaf.requires_grad_()
                states, last = gru_states(leaves[0], leaves[1], local, counts, h[:n])
                loss = functional.cross_entropy(states @ leaves[2].T, items, reduction="sum")
                loss.backward()
                h = torch.cat([last.detach(), h[n:]])
                total += float(loss.detach())
                of_all = torch.tensor([m / lengths.sum()], device=device)
                of_users = torch.tensor([len(p) for p in parts]) / torch.from_numpy(lengths[active])
                shares = [of_all if pooled else of_users.to(device), torch.bincount(local) / of_items[rows], of_all]
                with torch.no_grad():
                    gradients = [
                        (leaf.grad + settings["ridge"] * share.view(-1, *[1] * (leaf.dim() - 1)) * leaf) / most
                        for leaf, share in zip(leaves, shares)
                    ]
                    norm = float(torch.sqrt(sum((g * g).sum() for g in gradients)))
                    shrink = min(1.0, settings["clip"] / norm)
                    places = [slice(n), rows, slice(None)]
                    for table, gradient, moment, here in zip(
                        [own, *tables[1:]], gradients, [own_moments, *moments[1:]], places
                    ):
                        value, held = table[here], tuple(part[here] for part in moment)
                        stepped(value, shrink * gradient.float(), held, settings["learning_rate"])
                        table[here] = value
                        for part, changed in zip(moment, held):
                            part[here] = changed
            recurrent[kept] = own
            for part, changed in zip(moments[0], own_moments):
                part[kept] = changed
        seconds.append(clock() - began)
        nats.append(total / lengths.sum())
        print(epoch, seconds[-1], nats[-1], flush=True)
    return {"seconds": np.array(seconds), "nats": np.array(nats)}


def main(given_path, found_path):
    """Do what the input asks."""
    torch.set_num_threads(1)
    with np.load(given_path) as given:
        settings, n_items, seed = json.loads(str(given["settings"])), int(given["n_items"]), int(given["seed"])
        sequences = np.split(given["items"], np.cumsum(given["lengths"])[:-1])
        if settings.pop("kind") == "SASRec":
            test = np.split(given["test_items"], np.cumsum(given["test_lengths"])[:-1])
            found = sasrec(sequences, given["tail"], test, n_items, settings, seed)
        else:
            found = gru(sequences, n_items, settings, seed, settings.pop("device", "cpu"))
    np.savez(found_path, version=torch.__version__, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
