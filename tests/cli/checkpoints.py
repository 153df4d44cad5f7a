"""Checkpoints and small models of the Python systems, for the tests of export, diff and inspect."""

import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import transformers as tf

GOLDENS = Path(__file__).parent.parent / "goldens"
IDS = torch.arange(1, 13).view(1, 12)

SIZES = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
MODELS = {
    "llama": tf.LlamaConfig(**SIZES, num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64),
    "tied": tf.LlamaConfig(
        **SIZES, num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64, tie_word_embeddings=True
    ),
    "opt": tf.OPTConfig(**SIZES, ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=32, dropout=0.0),
}


def make_model(kind, seed=0):
    torch.manual_seed(seed)
    model = tf.AutoModelForCausalLM.from_config(MODELS[kind]).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no two alike
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def load(folder):
    return tf.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def save_dcp(state, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are no ranks, and that is right
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def copies(model):
    """As ranks save it: every parameter under every name, nothing shared."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
