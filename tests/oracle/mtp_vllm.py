"""Drafts with vLLM's own MTP classes, in a process of their own.

    python -m tests.oracle.mtp_vllm TEXTS OUTPUT NAME=FOLDER …

TEXTS has ``tokens`` [B, L] and, by name, what the target hands over, [B, L - 1, H]; OUTPUT gets,
per name, ``NAME.tokens`` [B, K] and ``NAME.logits`` [B, K, vocabulary]. As in eagle3_vllm.py.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from tests.oracle.eagle3_vllm import NUM_TOKENS, load


def prepare_classes() -> None:
    """Teaches classes blocks that are not published: dense, and with plain attention."""
    from vllm.model_executor.models.deepseek_mtp import DeepSeekMTP
    from vllm.model_executor.models.glm4_moe_mtp import Glm4MoeMTP
    from vllm.model_executor.models.qwen3_next_mtp import Qwen3NextMTP

    # They count experts, and have no word for a block without any.
    Qwen3NextMTP.set_moe_parameters = lambda self: None
    Glm4MoeMTP.extract_moe_parameters = lambda self, example: None
    load_weights = DeepSeekMTP.load_weights

    def load_fused(self: Any, weights: Any) -> Any:
        tensors = dict(weights)
        for name in [name for name in tensors if name.endswith("q_proj.weight")]:
            parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
            tensors[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        return load_weights(self, tensors.items())

    DeepSeekMTP.load_weights = load_fused


def share(model: Any, folder: str) -> None:
    """Gives the block the target's embedding and head, as the proposer does."""
    from safetensors.torch import load_file

    tensors = load_file(os.path.join(folder, "model.safetensors"))
    model.model.embed_tokens.weight.data = tensors["model.embed_tokens.weight"]
    heads = [model] if hasattr(model, "lm_head") else []
    heads += [layer.shared_head for layer in blocks(model) if hasattr(layer, "shared_head")]
    for holder in heads:
        head = holder.lm_head if hasattr(holder, "lm_head") else holder.head
        head.weight.data = tensors["lm_head.weight"]
        # On a CPU the product holds on to the weight of the time of loading.
        head.quant_method.process_weights_after_loading(head)


def blocks(model: Any) -> list[Any]:
    layers = getattr(model.model, "layers", None)
    return list(layers.values()) if isinstance(layers, torch.nn.ModuleDict) else []


def draft(
    model: Any, tokens: torch.Tensor, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    ids, chosen, all_logits = tokens[1:], [], []
    for _ in range(NUM_TOKENS):
        made = model(ids, torch.arange(len(ids)), hidden)
        output, fed_back = made if isinstance(made, tuple) else (made, made)
        logits = model.compute_logits(output[-1:])
        all_logits.append(logits[0])
        chosen.append(logits[0].argmax())
        ids = torch.cat([ids, chosen[-1][None]])
        hidden = torch.cat([hidden, fed_back[-1:]])
    return torch.stack(chosen), torch.stack(all_logits)


@torch.inference_mode()
def main(texts: str, output: str, *targets: str) -> None:
    from safetensors.torch import load_file, save_file
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    prepare_classes()
    given = load_file(texts)
    results = {}
    for name, _, folder in (one.partition("=") for one in targets):
        config, model = load(folder, {"method": "mtp"})
        share(model, folder)
        with set_current_vllm_config(config), set_forward_context(None, config):
            made = [draft(model, *one) for one in zip(given["tokens"], given[name], strict=True)]
        results[f"{name}.tokens"] = torch.stack([tokens for tokens, _ in made])
        results[f"{name}.logits"] = torch.stack([logits for _, logits in made])
    save_file(results, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
