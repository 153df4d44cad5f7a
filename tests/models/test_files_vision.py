"""open_clip and transformers are the references of image towers, in every layout that people have."""

import json

import open_clip
import pytest
import torch
import transformers as tf
from file_models import assert_same, close, flamingo, flamingo_inputs, language_model, save, stir, tensors_in
from safetensors.torch import save_file

SIDE = 32
TEXT = dict(context_length=8, vocab_size=64, width=32, heads=2, layers=1)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    language_model("opt").save_pretrained(folder)
    return folder


def clip(quick_gelu=True, width=64, head_width=16, dtype=torch.float32, **vision):
    torch.manual_seed(0)
    sizes = dict(image_size=SIDE, layers=2, width=width, head_width=head_width, patch_size=8, mlp_ratio=1.5, **vision)
    config = dict(embed_dim=24, quick_gelu=quick_gelu, vision_cfg=sizes, text_cfg=TEXT)
    return stir(open_clip.CLIP(**config)).to(dtype), config


def hf_clip(**vision):
    torch.manual_seed(0)
    sizes = dict(
        hidden_size=48,
        intermediate_size=72,
        num_hidden_layers=2,
        num_attention_heads=3,
        image_size=SIDE,
        projection_dim=24,
        patch_size=8,
        **vision,
    )
    text = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
    config = tf.CLIPConfig(text_config=text, vision_config=sizes, projection_dim=24)
    return stir(tf.CLIPModel(config))


def save_open_clip(model, config, folder, weights="open_clip_model.safetensors"):
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if weights.endswith(".bin"):
        # As open_clip's own training writes it.
        torch.save({"epoch": 1, "state_dict": {f"module.{name}": t for name, t in tensors.items()}}, folder / weights)
    else:
        save_file(tensors, folder / weights)
    return folder


def seen_by(forward, lm, vision, after_norm):
    model = flamingo(lm, vision, vision_tokens_after_ln_post=after_norm)
    return forward(model, flamingo_inputs(SIDE), "--stages")


def check_open_clip(out, model):
    images = flamingo_inputs(SIDE)["vision_x"].flatten(0, 2)
    model.visual.output_tokens = True
    with torch.no_grad():
        pooled, tokens = model.float().visual(images)
    close(out["vision_tokens"], tokens)
    close(out["vision_pooled"], pooled)


def check_hugging_face(out, model):
    images = flamingo_inputs(SIDE)["vision_x"].flatten(0, 2)
    with torch.no_grad():
        close(out["vision_tokens"], model.vision_model(pixel_values=images).last_hidden_state[:, 1:])
        if hasattr(model, "get_image_features"):
            close(out["vision_pooled"], model.get_image_features(pixel_values=images))


@pytest.mark.parametrize("quick_gelu", [True, False], ids=["quick", "gelu"])
@pytest.mark.parametrize("weights", ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])
def test_open_clip(quick_gelu, weights, lm, tmp_path, forward):
    model, config = clip(quick_gelu, norm_kwargs={"eps": 1e-3})
    folder = save_open_clip(model, config, tmp_path / "vision", weights)
    check_open_clip(seen_by(forward, lm, folder, True), model)


@pytest.mark.parametrize("act", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_hugging_face_clip(act, safe, lm, tmp_path, forward):
    model = hf_clip(hidden_act=act, layer_norm_eps=1e-3)
    model.save_pretrained(tmp_path / "vision", safe_serialization=safe)
    check_hugging_face(seen_by(forward, lm, tmp_path / "vision", False), model)


@pytest.mark.parametrize("kind", [tf.CLIPVisionModel, tf.CLIPVisionModelWithProjection])
def test_hugging_face_tower_alone(kind, lm, tmp_path, forward):
    model = hf_clip()
    model.save_pretrained(tmp_path / "whole")
    tower = kind.from_pretrained(tmp_path / "whole").eval()
    tower.save_pretrained(tmp_path / "vision")
    out = seen_by(forward, lm, tmp_path / "vision", False)
    check_hugging_face(out, tower)
    assert ("vision_pooled" in out) == (kind is tf.CLIPVisionModelWithProjection)
    if "vision_pooled" in out:
        check_hugging_face(out, model)


class Archive(torch.nn.Module):
    """What OpenAI's archives hold, as far as names and types go."""

    def __init__(self, model):
        super().__init__()
        self.visual = model.visual
        self.text_projection = model.text_projection
        self.register_buffer("input_resolution", torch.tensor(SIDE))

    def forward(self, image):
        return self.visual(image)


def test_openai_archive(lm, tmp_path, forward):
    """TorchScript in half precision, without a configuration: shapes tell everything."""
    model, config = clip(width=128, head_width=64)
    model.half()
    archive = torch.jit.trace(Archive(model), torch.zeros(1, 3, SIDE, SIDE, dtype=torch.half), check_trace=False)
    archive.save(str(tmp_path / "ViT.pt"))
    out = seen_by(forward, lm, tmp_path / "ViT.pt", True)
    check_open_clip(out, model)
    # And onwards into open_clip's own layout, in the archive's type.
    ours = save("open_clip", flamingo(lm, tmp_path / "ViT.pt"), tmp_path / "ours")
    model.half()
    theirs = {f"visual.{name}": value for name, value in model.visual.state_dict().items()}
    assert_same(tensors_in(ours), theirs)


def test_floe_to_open_clip(lm, tmp_path, forward):
    for number, (quick_gelu, source) in enumerate([(True, "open_clip"), (False, "open_clip"), (True, "hugging_face")]):
        if source == "open_clip":
            model, config = clip(quick_gelu, norm_kwargs={"eps": 1e-4})
            vision = save_open_clip(model, config, tmp_path / f"theirs{number}")
        else:
            vision = tmp_path / f"theirs{number}"
            hf_clip().save_pretrained(vision)
        ours = save("open_clip", flamingo(lm, vision), tmp_path / f"ours{number}")
        # open_clip builds the tower from our configuration and finds all of its weights.
        written = json.loads((ours / "open_clip_config.json").read_text())["model_cfg"]
        theirs = open_clip.CLIP(**{**written, "text_cfg": TEXT}).eval()
        seen = theirs.load_state_dict(tensors_in(ours), strict=False)
        assert not seen.unexpected_keys and not [name for name in seen.missing_keys if name.startswith("visual.")]
        if source == "open_clip":
            assert_same(dict(theirs.visual.state_dict()), dict(model.visual.state_dict()))
        check_open_clip(seen_by(forward, lm, vision, True), theirs)
        check_open_clip(seen_by(forward, lm, ours, True), theirs)
        again = save("open_clip", flamingo(lm, ours), tmp_path / f"again{number}")
        assert_same(tensors_in(again), tensors_in(ours))


@pytest.mark.parametrize("source", ["open_clip", "hugging_face"])
def test_floe_to_hugging_face(source, lm, tmp_path, forward):
    if source == "open_clip":
        model, config = clip(False)
        vision = save_open_clip(model, config, tmp_path / "theirs")
    else:
        vision = tmp_path / "theirs"
        hf_clip().save_pretrained(vision)
    ours = save("clip", flamingo(lm, vision), tmp_path / "ours")
    if source == "hugging_face":
        theirs = {n: t for n, t in tensors_in(vision).items() if n.startswith(("vision_model", "visual_projection"))}
        assert_same(tensors_in(ours), theirs)
    tower, seen = tf.CLIPVisionModelWithProjection.from_pretrained(ours, output_loading_info=True)
    assert not seen["missing_keys"] and not seen["unexpected_keys"], seen
    check_hugging_face(seen_by(forward, lm, vision, False), tower.eval())
    # CLIPVisionModel takes the same folder.
    tower, seen = tf.CLIPVisionModel.from_pretrained(ours, output_loading_info=True)
    assert not seen["missing_keys"]
    # And back again.
    back = save("open_clip", flamingo(lm, ours), tmp_path / "back")
    assert_same(tensors_in(back), tensors_in(save("open_clip", flamingo(lm, vision), tmp_path / "direct")))


def refused(run_forward, lm, vision, tmp_path, *parts):
    model = tmp_path / "refused.yaml"
    model.write_text(json.dumps(flamingo(lm, vision)))
    done = run_forward(model, "none", "none")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr


# As open_clip has them for ViT-L-14 of OpenAI, and of LAION-2B (laion2b_s32b_b82k).
CLIP_COLOURS = dict(mean=[0.48145466, 0.4578275, 0.40821073], std=[0.26862954, 0.26130258, 0.27577711])
OTHER_COLOURS = dict(mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5])


def test_pictures_that_floe_does_not_make_are_refused_by_open_clip(lm, tmp_path, run_forward):
    model, config = clip()
    folder = save_open_clip(model, config, tmp_path / "vision")
    usual = dict(interpolation="bicubic", resize_mode="shortest")
    for key, value in dict(mean=[0.5], std=[1, 1, "1"], interpolation="bilinear", resize_mode="squash").items():
        cfg = {"model_cfg": config, "preprocess_cfg": {**usual, key: value}}
        (folder / "open_clip_config.json").write_text(json.dumps(cfg))
        refused(run_forward, lm, folder, tmp_path, "open_clip_config.json", f"'preprocess_cfg.{key}'")


def test_pictures_that_floe_does_not_make_are_refused_by_hugging_face(lm, tmp_path, run_forward):
    hf_clip().save_pretrained(tmp_path / "vision")
    file = tmp_path / "vision" / "preprocessor_config.json"
    for key, value in dict(image_mean=[0.5], resample=2, do_normalize=False, do_center_crop=False).items():
        file.write_text(json.dumps({**tf.CLIPImageProcessor().to_dict(), key: value}))
        refused(run_forward, lm, tmp_path / "vision", tmp_path, "preprocessor_config.json", f"'{key}'")


def test_configurations_of_the_older_form(lm, tmp_path, forward):
    """With both tables transformers takes vision_config_dict, and its own defaults for what that leaves out."""
    hf_clip().save_pretrained(tmp_path / "vision")
    file = tmp_path / "vision" / "config.json"
    config = json.loads(file.read_text())
    newer = {key: value for key, value in config["vision_config"].items() if key != "hidden_act"}
    config["vision_config"].update(hidden_act="gelu", num_attention_heads=4)
    file.write_text(json.dumps({**config, "vision_config_dict": newer}))
    model = tf.CLIPModel.from_pretrained(tmp_path / "vision").eval()
    assert model.config.vision_config.hidden_act == "quick_gelu"
    check_hugging_face(seen_by(forward, lm, tmp_path / "vision", False), model)


@pytest.mark.parametrize("act", ["relu", "silu"])
def test_other_activations_are_written_as_they_are(act, lm, tmp_path, forward):
    model = hf_clip(hidden_act=act)
    model.save_pretrained(tmp_path / "vision")
    ours = save("clip", flamingo(lm, tmp_path / "vision"), tmp_path / "ours")
    tower = tf.CLIPVisionModelWithProjection.from_pretrained(ours).eval()
    check_hugging_face(seen_by(forward, lm, tmp_path / "vision", False), tower)
