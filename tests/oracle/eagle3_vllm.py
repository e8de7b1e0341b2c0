"""Drafts with vLLM's own EAGLE-3 classes, in a process of their own.

    python -m tests.oracle.eagle3_vllm TARGET TEXTS OUTPUT NAME=FOLDER …

TEXTS has ``tokens`` [B, L] and the target's rows by name, [B, L - 1, …]; OUTPUT gets, per name,
``NAME.tokens`` [B, K] and ``NAME.logits`` [B, K, vocabulary]. Attention is written out, so that no
engine is needed; each step runs over the whole text again, so that there is no cache either.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch.nn import functional

NUM_TOKENS = 4


class PlainAttention(torch.nn.Module):
    """In place of vLLM's attention over its paged cache."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.heads, self.kv_heads = attention.num_heads, attention.num_kv_heads
        self.size, self.window = attention.head_size, attention.sliding_window
        self.scale = float(attention.impl.scale)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length = q.shape[0]
        queries, keys, values = (
            part.view(length, number, self.size).transpose(0, 1)
            for part, number in ((q, self.heads), (k, self.kv_heads), (v, self.kv_heads))
        )
        distance = torch.arange(length)[:, None] - torch.arange(length)
        mask = distance >= 0
        if self.window is not None:
            mask &= distance < self.window
        out = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, enable_gqa=True, scale=self.scale
        )
        return out.transpose(0, 1).flatten(1)


def load(target: str, speculation: dict[str, Any]) -> Any:
    """Returns the config, and the model that ``speculation`` names."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model

    config = EngineArgs(
        model=target,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        skip_tokenizer_init=True,
        speculative_config={**speculation, "num_speculative_tokens": NUM_TOKENS},
    ).create_engine_config()
    with set_current_vllm_config(config):
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
            parallel_state.initialize_model_parallel(1, 1)
        # The loader calls it after each model, and it fails where there is no accelerator.
        torch.accelerator.empty_cache = lambda: None
        model = get_model(
            vllm_config=config, model_config=config.speculative_config.draft_model_config
        )
        for module in list(model.modules()):
            if hasattr(getattr(module, "attn", None), "sliding_window"):
                module.attn = PlainAttention(module.attn)
    return config, model


def draft(
    model: Any, tokens: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = model.combine_hidden_states(rows)
    ids, chosen, all_logits = tokens[1:], [], []
    for _ in range(NUM_TOKENS):
        output, fed_back = model(ids, torch.arange(len(ids)), hidden)
        logits = model.compute_logits(output[-1:])
        all_logits.append(logits[0])
        chosen.append(logits[0].argmax())
        ids = torch.cat([ids, chosen[-1][None]])
        hidden = torch.cat([hidden, fed_back[-1:]])
    return torch.stack(chosen), torch.stack(all_logits)


@torch.inference_mode()
def main(target: str, texts: str, output: str, *drafts: str) -> None:
    from safetensors.torch import load_file, save_file
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    given = load_file(texts)
    embedding = load_file(os.path.join(target, "model.safetensors"))["model.embed_tokens.weight"]
    results = {}
    for name, _, folder in (one.partition("=") for one in drafts):
        config, model = load(target, {"method": "eagle3", "model": folder})
        if not model.has_own_embed_tokens:
            model.model.embed_tokens.weight.data = embedding
        rows = given[name if name in given else "aux.3"]
        with set_current_vllm_config(config), set_forward_context(None, config):
            made = [draft(model, *one) for one in zip(given["tokens"], rows, strict=True)]
        results[f"{name}.tokens"] = torch.stack([tokens for tokens, _ in made])
        results[f"{name}.logits"] = torch.stack([logits for _, logits in made])
    save_file(results, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
