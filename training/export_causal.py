"""A small language model as a folder that transformers, vLLM and Paceline load as any other."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from paceline.training.causal_lm import CausalLM
from paceline.training.export import llama_config, write
from paceline.training.objective import Vocabulary
from paceline.training.target import Target

TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


def export(model: CausalLM, vocabulary: Vocabulary, target: Target, folder: Path) -> None:
    """Writes the model in bfloat16, with the head's other rows 0, and the target's tokenizer."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    drafted = tensors.pop("model.lm_head")
    head = torch.zeros_like(tensors["model.embed_tokens.weight"])
    head[vocabulary.ids.to(head.device)] = drafted
    tensors["lm_head.weight"] = head
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": len(model.layers),
        **llama_config(target, model.shape),
    }
    write(folder, tensors, config)
    for name in TOKENIZER_FILES:
        if (target.folder / name).is_file():
            shutil.copyfile(target.folder / name, folder / name)
