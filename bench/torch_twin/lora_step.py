"""One system of bench/h200_lora.py in PyTorch: lora_step.py CONFIG.json SYSTEM. Prints one line of JSON.

transformers with adapters by hand (peft's own have dtype casts and branches that cost more), sdpa, everything in bf16, fused AdamW;
`compiled`: torch.compile of each decoder layer and of the loss. Not with peft's or transformers' trainers, which would add to the step.
"""

import gc
import json
import math
import statistics
import sys
import time

import torch
import transformers as tf
from torch import nn

SYSTEMS = {"transformers": {}, "transformers compiled": {"compile": True}, "transformers checkpointed": {"checkpoint": True},
           "transformers checkpointed compiled": {"checkpoint": True, "compile": True}}  # fmt: skip


class Adapted(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.a = nn.Parameter(torch.empty(rank, base.in_features, dtype=base.weight.dtype, device=base.weight.device))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, dtype=base.weight.dtype, device=base.weight.device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + nn.functional.linear(nn.functional.linear(x, self.a) * self.scale, self.b)


def adapt(module, lora):
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear) and name in lora["targets"]:
            setattr(module, name, Adapted(child, lora["rank"], lora["alpha"]))
        else:
            adapt(child, lora)


class System:
    def __init__(self, config, options):
        self.config, self.device = config, torch.device(config["device"])
        torch.manual_seed(config["seed"])
        spec = config["model"]["lm"]
        settings = tf.AutoConfig.for_model(spec["model_type"], **{key: value for key, value in spec.items() if key != "model_type"})
        settings.use_cache = False
        torch.set_default_dtype(torch.bfloat16)
        with self.device:
            self.model = tf.AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa")
        self.model.requires_grad_(False)
        adapt(self.model.model.layers, config["model"]["lora"])
        torch.set_default_dtype(torch.float32)
        if options.get("checkpoint"):
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            self.model.enable_input_require_grads()
        self.model.train()
        self.loss_of = self.head_loss
        if options.get("compile"):
            for layer in self.model.model.layers:
                layer.compile()
            self.loss_of = torch.compile(self.head_loss)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=config["lr"], weight_decay=0.1, fused=True)
        data = config["data"][0]
        ids = torch.randint(1, data["text_tokens"], (len(data["sequences"]), data["sequences"][0][0]))
        self.ids = ids.to(self.device)

    def head_loss(self, hidden, labels):
        return nn.functional.cross_entropy(self.model.lm_head(hidden).float(), labels)

    def step(self):
        hidden = self.model.model(self.ids).last_hidden_state[:, :-1].reshape(-1, self.config["model"]["lm"]["hidden_size"])
        loss = self.loss_of(hidden, self.ids[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def main():
    with open(sys.argv[1]) as file:
        config = json.load(file)
    on_gpu = config["device"] == "cuda"
    system = System(config, SYSTEMS[sys.argv[2]])
    for _ in range(config["warmup"]):
        system.step()
    gc.disable()
    times, losses = [], []
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(config["steps"]):
        begin = time.perf_counter()
        loss = system.step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
        losses.append(loss.item())
    assert all(map(math.isfinite, losses)), losses
    print(json.dumps({"step_ms": times, "median_ms": statistics.median(times), "losses": losses, "tokens": system.ids.numel(),
                      "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0}))  # fmt: skip


main()
