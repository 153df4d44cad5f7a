"""The batches of bench/h200*.py, padded. bench/flamingo_job.cc makes the same samples: both draw from
torch's generators with the same seeds."""

import torch


def _generator(seed, device):
    return torch.Generator(device).manual_seed(seed)


def _random_samples(config, source, step, device):
    """Token ids of each sequence, and all their images."""
    data = config["data"][source]
    seed = config["seed"] * 1_000_003 + step * 16 + source
    lengths = [tokens for tokens, _ in data["sequences"]]
    ids = torch.randint(1, data["text_tokens"], (sum(lengths),), generator=_generator(seed, "cpu"))
    count = sum(images for _, images in data["sequences"])
    side = config["model"].get("image_size", 224)
    images = torch.randn(count, 3, side, side, generator=_generator(seed, device), device=device, dtype=torch.bfloat16)
    return ids.split(lengths), images


def _padded_images(data, images):
    """[rows, slots, 3, side, side]"""
    slots = data["slots"]
    counts = [count for _, count in data["sequences"]]
    if all(count == slots for count in counts):
        return images.view(len(counts), slots, *images.shape[1:])
    out = images.new_zeros(len(counts), slots, *images.shape[1:])
    for row, own in zip(out, images.split(counts), strict=True):
        row[: len(own)] = own
    return out


def make_batch(config, source, step, model, device, dtype, reverse=False):
    """A padded batch of one data set, with everything that the layers need of it. `reverse`: the rows the
    other way round, which sums gradients in another order."""
    data = config["data"][source]
    texts, images = _random_samples(config, source, step, device)
    media_token = config["model"]["media_token"]
    rows, length = len(texts), max(len(text) for text in texts)
    ids = torch.zeros(rows, length, dtype=torch.long)
    labels = torch.full((rows, length), -100)
    for row, (text, (tokens, count)) in enumerate(zip(texts, data["sequences"], strict=True)):
        marker = torch.arange(tokens) * count % tokens < count
        ids[row, :tokens] = torch.where(marker, media_token, text)
        labels[row, :tokens] = torch.where(marker, -100, text)
    images = _padded_images(data, images).to(dtype)
    if reverse:
        ids, labels, images = ids.flip(0), labels.flip(0), images.flip(0)
    times = (ids == media_token).cumsum(1)
    sees = times[:, :, None] == torch.arange(1, data["slots"] + 1)  # [rows, length, slots]
    mask = None if bool(sees.all()) else sees.repeat_interleave(model.num_latents, -1)[:, None].to(device)
    return {
        "ids": ids.to(device),
        "labels": labels.to(device),
        "sees": mask,
        "images": images,
        "positions": model.positions(length, device, dtype),
        "tokens_sum": int(ids.sum()),
    }
