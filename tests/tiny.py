"""A tiny target: a Llama with random weights and a fixed seed, for tests that need an engine."""

from __future__ import annotations

from pathlib import Path

VOCAB_SIZE = 256
CHARACTERS = [chr(code) for code in (*range(32, 127), *range(0x100, 0x100 + VOCAB_SIZE - 95))]
"""What each token spells with ``add_tokenizer``'s tokenizer."""


def make_tiny_llama(
    folder: Path,
    *,
    num_heads: int = 4,
    vocab_size: int = VOCAB_SIZE,
    hidden_size: int = 64,
    # Larger than the usual 0.02: logits far enough apart that no greedy choice is a tie.
    spread: float = 0.3,
    eos_token_id: int | None = None,
) -> Path:
    """Saves a two-layer float32 Llama without a tokenizer in ``folder``; returns it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=2,
        # vLLM's CPU attention takes head sizes that are multiples of 32.
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=spread,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder


def add_tokenizer(folder: Path) -> None:
    """Saves a tokenizer of one character per token: ASCII first, so that grammars can be spelt."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: number for number, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=CHARACTERS[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
