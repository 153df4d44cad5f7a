"""OpenFlamingo's own generation and scoring, for bench/h200_generate.py.

usage: generate.py CONFIG.json

Needs open_flamingo 2.0.1 and what it imports (einops, einops_exts, open_clip_torch), and a transformers that it works with
(4.x). CONFIG: {"folder", "model", "device", "prepare": true} writes a model of random weights, which floe and OpenFlamingo then
both read; with "jobs": [{"task": "generate" | "score", "requests", "batch"}, ...] instead the file "results" gets a line for each
with "seconds" and "model_seconds": with pictures decoded as OpenFlamingo's evaluation decodes them, and of the model alone.
"""

import copy
import json
import math
import sys
import time
from pathlib import Path

import torch
import transformers as tf
from einops import rearrange
from open_clip.transform import PreprocessCfg, image_transform_v2
from open_flamingo.src.flamingo import Flamingo
from open_flamingo.src.flamingo_lm import FlamingoLMMixin
from open_flamingo.src.utils import extend_instance
from PIL import Image
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import open_clip  # noqa: E402
from h200_models import CROSS_ATTENTION_EVERY, LANGUAGE_MODELS  # noqa: E402

TOWER = dict(image_size=224, layers=24, width=1024, head_width=64, patch_size=14)
TINY_TOWER = dict(image_size=28, layers=1, width=32, head_width=16, patch_size=14)


def clip_config(model):
    vision = TINY_TOWER if model == "tiny" else TOWER
    return dict(embed_dim=16, quick_gelu=True, vision_cfg=vision, text_cfg=dict(context_length=8, vocab_size=64, width=16, heads=2, layers=1))


def image_tower(model):
    """Tokens before the last norm, as open_clip 2.20 gave them to OpenFlamingo."""
    config = clip_config(model)
    clip = open_clip.CLIP(**dict(config, vision_cfg=dict(config["vision_cfg"], final_ln_after_pool=True)))
    clip.visual.output_tokens = True
    return clip


def language_model(model):
    keys = {key: value for key, value in LANGUAGE_MODELS[model].items() if key != "model_type"}
    config = tf.AutoConfig.for_model(LANGUAGE_MODELS[model]["model_type"], **keys)
    if config.model_type == "mpt":
        config.max_seq_len = 2048
    return tf.AutoModelForCausalLM.from_config(config)


def flamingo(model, lm, clip):
    extend_instance(lm, FlamingoLMMixin)
    lm.set_decoder_layers_attr_name({"mpt": "transformer.blocks", "gpt_neox": "gpt_neox.layers"}[lm.config.model_type])
    vocab = LANGUAGE_MODELS[model]["vocab_size"]
    width = clip_config(model)["vision_cfg"]["width"]
    return Flamingo(clip, lm, vocab - 1, vocab - 2, vis_dim=width, cross_attn_every_n_layers=CROSS_ATTENTION_EVERY[model])


def trained_part(built):
    return {name: value for name, value in built.state_dict().items() if "gated_cross_attn_layer" in name or name.startswith("perceiver")}


def prepare(config):
    folder, model = Path(config["folder"]), config["model"]
    torch.manual_seed(1)
    with torch.device(config["device"]):
        lm, clip = language_model(model), image_tower(model)
        for parameter in lm.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.04)
        built = flamingo(model, lm, clip)
    for name, parameter in built.named_parameters():
        if name.endswith(("attn_gate", "ff_gate")):
            parameter.data.fill_(0.5)
    trained = {name: value.to(torch.bfloat16).cpu() for name, value in trained_part(built).items()}
    torch.save({"model_state_dict": {name: value for name, value in trained.items() if ".old_decoder_blocks." not in name}}, folder / "trained.pt")
    (folder / "vision").mkdir()
    (folder / "vision" / "open_clip_config.json").write_text(json.dumps({"model_cfg": clip_config(model)}))
    save_file({name: value.detach().to(torch.bfloat16).cpu().contiguous() for name, value in clip.state_dict().items()},
              folder / "vision" / "open_clip_model.safetensors")  # fmt: skip
    (folder / "lm").mkdir()
    del built
    torch.manual_seed(1)
    with torch.device(config["device"]):
        plain = language_model(model)
        image_tower(model)  # keeps the draws in step
        for parameter in plain.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.04)
    plain.to(torch.bfloat16).save_pretrained(folder / "lm")


def loaded(config):
    folder, model = Path(config["folder"]), config["model"]
    lm = tf.AutoModelForCausalLM.from_pretrained(folder / "lm", torch_dtype=torch.bfloat16)
    clip = image_tower(model)
    clip.load_state_dict(load_file(folder / "vision" / "open_clip_model.safetensors"), strict=False)
    built = flamingo(model, lm, clip)
    missing = built.load_state_dict(torch.load(folder / "trained.pt")["model_state_dict"], strict=False)
    assert not missing.unexpected_keys, missing.unexpected_keys
    return built.to(config["device"], getattr(torch, config["dtype"])).eval()


def synchronize(config):
    if config["device"] == "cuda":
        torch.cuda.synchronize()


class Pictures:
    """Each is decoded once, as OpenFlamingo's evaluation decodes it; what that takes is counted for every time that it is asked for."""

    def __init__(self, model):
        size = clip_config(model)["vision_cfg"]["image_size"]
        self._transform = image_transform_v2(PreprocessCfg(size=size), is_train=False)
        self._known, self._seconds, self.asked = {}, 0.0, 0

    def __getitem__(self, name):
        self.asked += 1
        if name not in self._known:
            begin = time.monotonic()
            self._known[name] = self._transform(Image.open(name).convert("RGB"))
            self._seconds += time.monotonic() - begin
        return self._known[name]

    def seconds(self, asked):
        return self._seconds / len(self._known) * asked


def batches_of(config, known):
    """In the order of the file, as OpenFlamingo's evaluation has them; prompts padded on the left."""
    requests = [json.loads(line) for line in Path(config["requests"]).read_text().splitlines()]
    requests = requests[: config.get("most", len(requests))]
    for first in range(0, len(requests), config["batch"]):
        part = requests[first : first + config["batch"]]
        pictures = torch.stack([torch.stack([known[name] for name in one["images"]]) for one in part])
        longest = max(len(one["ids"]) for one in part)
        ids = torch.tensor([[0] * (longest - len(one["ids"])) + one["ids"] for one in part])
        mask = torch.tensor([[0] * (longest - len(one["ids"])) + [1] * len(one["ids"]) for one in part])
        synchronize(config)
        yield part, rearrange(pictures, "b t c h w -> b t 1 c h w"), ids, mask


@torch.inference_mode()
def generate(config, built, known):
    answers, model_seconds = [], 0.0
    for part, pictures, ids, mask in batches_of(config, known):
        own = time.monotonic()
        out = built.generate(
            pictures.to(config["device"], getattr(torch, config["dtype"])), ids.to(config["device"]), attention_mask=mask.to(config["device"]),
            min_new_tokens=config["new_tokens"], max_new_tokens=config["new_tokens"], num_beams=config["beams"], length_penalty=0.0,
            pad_token_id=0,
        )  # fmt: skip
        answers += out[:, ids.shape[1] :].tolist()
        model_seconds += time.monotonic() - own
    return {"requests": len(answers), "model_seconds": model_seconds, "answers": answers[:64]}


@torch.inference_mode()
def score(config, built, known):
    """The prompt once, its keys and values kept, then each class after it: OpenFlamingo's evaluation with its cache, but all
    tokens of a class in one pass."""
    answers, model_seconds = [], 0.0
    device = config["device"]
    for part, pictures, ids, mask in batches_of(config, known):
        own = time.monotonic()
        ids, mask = ids.to(device), mask.to(device)
        built.cache_media(input_ids=ids, vision_x=pictures.to(device, getattr(torch, config["dtype"])))
        known = built(None, ids, attention_mask=mask, clear_conditioned_layers=False, use_cache=True)
        scores = []
        for number in range(len(part[0]["candidates"])):
            tokens = torch.tensor([one["candidates"][number] for one in part], device=device)
            whole = torch.cat([mask, torch.ones_like(tokens)], 1)
            more = built(None, tokens, attention_mask=whole, clear_conditioned_layers=False, use_cache=True,
                         past_key_values=copy.deepcopy(known.past_key_values))  # fmt: skip
            logits = torch.cat([known.logits[:, -1:], more.logits[:, :-1]], 1).float().log_softmax(-1)
            scores.append(logits.gather(2, tokens.unsqueeze(2)).squeeze(2).sum(1))
        built.uncache_media()
        answers += torch.stack(scores, 1).tolist()
        model_seconds += time.monotonic() - own
    return {"requests": len(answers), "model_seconds": model_seconds, "answers": answers[:64]}


def run_job(config, built, known):
    task = {"generate": generate, "score": score}[config["task"]]
    try:
        task(dict(config, most=8), built, known)  # warm
        if config["device"] == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before = known.asked
        result = task(config, built, known)
        result["seconds"] = result["model_seconds"] + known.seconds(known.asked - before)
    except torch.OutOfMemoryError as error:
        built.uncache_media()
        return {"error": str(error).splitlines()[0]}
    if config["device"] == "cuda":
        result["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    assert all(math.isfinite(value) for value in result.values() if isinstance(value, float))
    return result


def main():
    config = json.loads(Path(sys.argv[1]).read_text())
    if config.get("prepare"):
        prepare(config)
        print("{}")
        return
    built, known = loaded(config), Pictures(config["model"])
    with open(config["results"], "w") as results:
        for job in config["jobs"]:
            done = run_job(dict(config, **job), built, known)
            print(json.dumps(dict(done, job=job)), file=results, flush=True)
    print("{}")


main()
