"""The twin's side of bench/h200_curves.py: flamingo_curve.py CONFIG.json prints one line of JSON.

Tasks: "init" writes random weights; "curve" trains from them, a new batch each step; "gradients" gives the
gates' gradients for one batch, several times over. In bf16 the parameters that train have fp32 masters, and
gradients of the data sets are added in fp32.
"""

import json
import sys

import flamingo_weights
import torch
from flamingo_batch import make_batch
from flamingo_model import Flamingo, compile_layers

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Masters:
    """fp32 values behind the parameters that train; the parameters themselves where those are fp32."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.apart = parameters[0].dtype != torch.float32
        self.values = [p.detach().float() for p in parameters] if self.apart else parameters

    def take_gradients(self):
        """Adds what the last backward left in the parameters."""
        if not self.apart:
            return
        for master, parameter in zip(self.values, self.parameters, strict=True):
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def clear_gradients(self):
        for master in self.values:
            master.grad = None

    @torch.no_grad()
    def write_back(self):
        if self.apart:
            torch._foreach_copy_(self.parameters, self.values)


class Job:
    def __init__(self, config):
        self.config = config
        self.device, self.dtype = torch.device(config["device"]), DTYPES[config["precision"]]
        with self.device:
            self.model = Flamingo(config["model"])
        self.model.to(self.dtype)
        flamingo_weights.load(self.model, config["weights"])
        self.model.freeze()
        if config.get("compile"):
            compile_layers(self.model)
        self.names, trained = zip(*((n, p) for n, p in self.model.named_parameters() if p.requires_grad), strict=True)
        self.masters = Masters(trained)
        self.tokens_sum = 0

    def forward_backward(self, step):
        total, sources = 0, list(enumerate(self.config["loss_weights"]))
        reverse = self.config.get("reverse", False)
        for source, weight in reversed(sources) if reverse else sources:
            batch = make_batch(self.config, source, step, self.model, self.device, self.dtype, reverse)
            self.tokens_sum += batch["tokens_sum"]
            loss = weight * self.model(batch)
            loss.backward()
            self.masters.take_gradients()
            total += loss.item()
        return total

    def curve(self):
        optimizer = torch.optim.AdamW(self.masters.values, weight_decay=0.1, fused=True)
        losses, norms = [], []
        for step, lr in enumerate(self.config["lrs"]):
            losses.append(self.forward_backward(step))
            norms.append(torch.nn.utils.clip_grad_norm_(self.masters.values, 1.0).item())
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            self.masters.clear_gradients()
            self.masters.write_back()
        return {"losses": losses, "gradient_norms": norms, "tokens_sum": self.tokens_sum}

    def gradients(self):
        runs = []
        for _ in range(self.config["repeats"]):
            loss = self.forward_backward(0)
            gradients = {flamingo_weights.floe_name(name): master.grad
                         for name, master in zip(self.names, self.masters.values, strict=True)}
            norm = torch.nn.utils.get_total_norm(gradients.values()).item()
            gates = {name: grad.item() for name, grad in gradients.items() if name.endswith("_gate")}
            runs.append({"loss": loss, "gradient_norm": norm, "gates": gates})
            self.masters.clear_gradients()
        return {"runs": runs, "tokens_sum": self.tokens_sum}


def init(config):
    with torch.device(config["device"]):
        model = Flamingo(config["model"])
    flamingo_weights.make_random(model, config["seed"])
    flamingo_weights.save(model, config["weights"])
    return {"parameters": sum(p.numel() for p in model.parameters())}


def main():
    with open(sys.argv[1]) as file:
        config = json.load(file)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    result = init(config) if config["task"] == "init" else getattr(Job(config), config["task"])()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
