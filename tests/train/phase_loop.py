"""The job of phases as a plain PyTorch loop: one process freezes and unfreezes by hand, with an AdamW for
every set. Ranks are gone through in order, and their gradients averaged."""

import torch
import transformers
from fnmatch import fnmatchcase
from safetensors.torch import save_file

# The first update of a fresh AdamW is the sign of a gradient where eps is far below it, so rounding decides
# over gradients that are nearly 0, and what follows differs for good. With 1e-8, plain torch in fp32 ends
# up to 8e-6 (language model) and 3e-4 (Flamingo) from the same loop in fp64, with 1e-4 5e-7 and 1e-5, with
# 1e-3 both below 1e-6: a comparison to 1e-6 needs an eps where fp32 itself is that good. With 1e-4 floe and the
# loop on one thread were 1.2e-6 apart.
EPS = 1e-3

SIZES = dict(
    vocab_size=64, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
    intermediate_size=40, max_position_embeddings=64,
)


def language_model(folder):
    """A small LLaMA whose weights are all of their own, also as a Hugging Face folder."""
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    model.save_pretrained(folder)
    return model


def write_batches(path, steps, ranks, rows=2, length=11, seed=3, labels=None):
    """`path` has {rank} in it. Returns tokens by rank and step, or, with `labels(rank, step)` (how many of a row's last
    tokens have a label), pairs of tokens and labels."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [[torch.randint(0, 64, (rows, length), generator=generator) for _ in range(steps)] for _ in range(ranks)]
    pairs = [[(ids, ids.clone()) for ids in of_rank] for of_rank in tokens]
    for rank, of_rank in enumerate(pairs):
        tensors = {}
        for step, (ids, wanted) in enumerate(of_rank):
            if labels:
                wanted[:, : length - labels(rank, step)] = -100
            tensors[f"step{step}.text.input_ids"] = ids
            tensors[f"step{step}.text.labels"] = wanted
            tensors[f"step{step}.text.attention_mask"] = torch.ones_like(ids)
        save_file(tensors, str(path).format(rank=rank))
    return pairs if labels else tokens


def text_loss(model):
    return lambda ids: model(input_ids=ids, labels=ids).loss


class Loop:
    """`phases` as in a configuration, `named` the parameters by floe's names, `loss(batch)` the model. What
    it leaves behind is in `losses`, `names` (of phases, by step), `lrs` and in the parameters."""

    def __init__(self, phases, named, loss, eps=EPS):
        self.phases, self.named, self.loss, self.eps = phases, named, loss, eps
        self.sets = [
            [p for name, p in self.named.items() if any(fnmatchcase(name, pattern) for pattern in phase["train"])]
            for phase in phases
        ]
        self.optimizers = [self.new_optimizer(i) for i in range(len(phases))]
        self.updates = [0] * len(phases)
        self.losses, self.names, self.lrs = [], [], []

    def new_optimizer(self, index):
        phase = self.phases[index]
        return torch.optim.AdamW(
            self.sets[index], lr=phase["lr"], weight_decay=phase["weight_decay"], betas=(0.9, 0.999), eps=self.eps
        )

    def run(self, batches, steps, factor=None):
        """`batches` by rank and step; `factor(phase, own updates)`: what a schedule makes of the rate."""
        order = [i for i, phase in enumerate(self.phases) for _ in range(phase["steps"])]
        before = None
        for step in range(steps):
            now = order[step % len(order)]
            if before not in (None, now) and self.phases[before]["optimizer_state"] == "drop":
                self.optimizers[before] = self.new_optimizer(before)
            before = now
            self.step(now, [of_rank[step % len(of_rank)] for of_rank in batches], factor)
        return self

    def step(self, now, batches, factor):
        for parameter in self.named.values():
            parameter.requires_grad_(False)
            parameter.grad = None
        for parameter in self.sets[now]:
            parameter.requires_grad_(True)
        losses = []
        for batch in batches:
            loss = self.loss(batch)
            (loss / len(batches)).backward()
            losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(self.sets[now], 1.0)
        optimizer = self.optimizers[now]
        if factor:
            for group in optimizer.param_groups:
                group["lr"] = self.phases[now]["lr"] * factor(now, self.updates[now])
        self.lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        self.updates[now] += 1
        self.losses.append(sum(losses) / len(losses))
        self.names.append(self.phases[now]["name"])

    def trained(self):
        """Weights of everything that some set trains, by name."""
        members = {id(p) for of_set in self.sets for p in of_set}
        return {name: p.detach() for name, p in self.named.items() if id(p) in members}
