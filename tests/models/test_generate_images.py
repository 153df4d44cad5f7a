"""Random Flamingos that generate `<image>` themselves, against a reference that remembers images as
OpenFlamingo does: the same ids, greedy and with beams. MPT is asked without a cache, as its files say."""

import pytest
import torch
import transformers as tf
from flamingo_reference import FlamingoReference
from generate_runs import floe_generate, left_padded, model_file, new_ids
from safetensors.torch import save_file
from test_flamingo import DECODERS, IMAGE_SIZE, VOCAB, make_lively

PERCEIVER = dict(depth=1, dim_head=8, heads=2, num_latents=4, ff_mult=2)
CROSS_ATTN = dict(dim_head=8, heads=3, ff_mult=2)
PAD = 1


class Remembering(FlamingoReference):
    """Times of new tokens: the number of `<image>` in the last input that had one, place by place."""

    def before(self, module, args, kwargs):
        here = kwargs["input_ids"] == self.media_token
        if self.remembered is None or here.any():
            self.remembered, self.times = here, here.cumsum(1)
        else:
            self.times = self.remembered.sum(1, keepdim=True).expand(here.shape)

    @torch.no_grad()
    def generate(self, vision_x, ids, mask, num_beams=1, **options):
        rows, images = vision_x.shape[:2]
        tokens = self.tower(vision_x.flatten(0, 2)).last_hidden_state
        media = self.perceiver(tokens[:, 1:]).unflatten(0, (rows, images))
        self.media, self.remembered = media.repeat_interleave(num_beams, 0), None
        hook = self.lm.register_forward_pre_hook(self.before, with_kwargs=True)
        out = self.lm.generate(ids, attention_mask=mask, num_beams=num_beams, do_sample=False, pad_token_id=PAD, **options)
        hook.remove()
        return out


def build_reference(family, every, only_immediate, image_token, seed, folder):
    lm_class, config, layers = DECODERS[family]
    lm = lm_class(config).eval()
    make_lively(lm, seed)
    tower = tf.CLIPVisionModel(
        tf.CLIPVisionConfig(
            hidden_size=24, num_attention_heads=3, num_hidden_layers=1, intermediate_size=40,
            image_size=IMAGE_SIZE, patch_size=8, projection_dim=16,
        )
    ).eval()
    make_lively(tower, 6)
    reference = Remembering(lm, layers, tower, False, every, PERCEIVER, CROSS_ATTN, image_token, only_immediate)
    make_lively(reference.perceiver, 8)
    make_lively(reference.gates, 9)
    lm.save_pretrained(folder / "lm")
    tower.save_pretrained(folder / "vision")
    save_file({name: p.detach().clone() for name, p in reference.trained_part().items()}, folder / "weights.safetensors")
    return reference


@pytest.mark.parametrize("only_immediate", [True, False], ids=["immediate", "all_previous"])
@pytest.mark.parametrize("family, every, seed", [("opt_untied", 1, 1), ("gpt_neox", 2, 2), ("mpt", 1, 3), ("llama", 3, 4)])
def test_generated_image_tokens(family, every, seed, only_immediate, tmp_path):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(3, VOCAB, (40,), generator=generator).tolist()
    vision = torch.randn((3, 2, 1, 3, IMAGE_SIZE, IMAGE_SIZE), generator=generator)
    save_file({"vision_x": vision}, tmp_path / "images.safetensors")
    generated = {1: 0, 3: 0}  # texts with <image>, by number of beams
    # The model is random: every token that it likes to say is a candidate for `<image>`.
    for image in range(3, 60, 7):
        reference = build_reference(family, every, only_immediate, image, seed, tmp_path)
        prompts = [[image, *text[:5], image, 9], [8, image, *text[5:9]], [image, *text[9:19], image, 20]]
        ids, mask = left_padded(prompts, PAD)
        # Make it say so: the word for an image weighs more in the output.
        with torch.no_grad():
            head = reference.lm.get_output_embeddings().weight
            head[image] *= 3
        reference.lm.save_pretrained(tmp_path / "lm")
        end = 89
        model = model_file(
            tmp_path / "model.yaml",
            dict(
                type="flamingo", lm=tmp_path / "lm", vision=tmp_path / "vision", weights=tmp_path / "weights.safetensors",
                cross_attn_every_n_layers=every, perceiver=PERCEIVER, cross_attn=CROSS_ATTN,
                only_attend_immediate_media=only_immediate, media_token_id=image, endofchunk_token_id=end,
            ),
        )
        for options in (dict(), dict(num_beams=3, num_return_sequences=2)):
            options["max_new_tokens"] = 12
            sequences = reference.generate(vision, ids, mask, eos_token_id=end, **options)
            expected = new_ids(sequences, ids.shape[1], [end])
            found = floe_generate(model, prompts, "--images", tmp_path / "images.safetensors", **options)
            assert found["ids"] == expected, (image, options)
            generated[options.get("num_beams", 1)] += sum(image in row[:-1] for row in expected)
        if min(generated.values()) >= 2:
            return
    pytest.fail(f"only {generated} texts have <image>: the test shows too little")
