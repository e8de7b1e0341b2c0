"""Tiny random models of several kinds of attention."""

from __future__ import annotations

from typing import Any

VOCAB = 64
MAX_LENGTH = 512
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": MAX_LENGTH,
    # Logits far enough apart that no choice is a tie.
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def full() -> Any:
    """Each token sees all before it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SMALL))


def sliding(window: int) -> Any:
    """Each token sees ``window``."""
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(sliding_window=window, **SMALL))


def mixed(window: int) -> Any:
    """One layer of either kind."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    kinds = ["sliding_attention", "full_attention"]
    return Qwen2ForCausalLM(
        Qwen2Config(use_sliding_window=True, sliding_window=window, layer_types=kinds, **SMALL)
    )


def learned(num_positions: int) -> Any:
    """Learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_positions=num_positions,
            n_embd=32,
            n_layer=2,
            n_head=2,
            initializer_range=0.3,
            bos_token_id=0,
            eos_token_id=1,
        )
    )
