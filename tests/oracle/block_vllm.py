"""Drafts with vLLM's own DFlash and DSpark classes and its CPU attention, in their own process.

    python -m tests.oracle.block_vllm TARGET TEXTS OUTPUT NAME=FOLDER=K …

TEXTS has ``tokens`` [B, L], ``lengths`` [B] and ``aux`` [B, L - 1, A * H]; OUTPUT gets, per name,
``NAME.tokens`` [B, K], ``NAME.logits`` [B, K, V] and, of a confidence head, ``NAME.confidence``
[B, K]. What vLLM's speculators prepare for the model, and DSpark's loop, is written out here:
theirs need Triton.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

NUM_BLOCKS, BLOCK = 8, 32


class DFlashOracle:
    """vLLM's model of a draft, with a cache for one text."""

    def __init__(self, target: str, folder: str, num_tokens: int) -> None:
        import vllm.config.vllm
        from vllm.config import set_current_vllm_config
        from vllm.distributed import parallel_state
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.model_loader import get_model

        # DSpark, and layers of two kinds, are what only this runner has. It needs Triton, which the
        # models do not.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        vllm.config.vllm.HAS_TRITON = True
        method = "dspark" if "dspark" in folder.rpartition("/")[2] else "dflash"
        self.config: Any = EngineArgs(
            model=target,
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            skip_tokenizer_init=True,
            speculative_config={
                "method": method,
                "model": folder,
                "num_speculative_tokens": num_tokens,
            },
        ).create_engine_config()
        draft = self.config.speculative_config.draft_model_config
        with set_current_vllm_config(self.config):
            if not parallel_state.model_parallel_is_initialized():
                parallel_state.init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
                parallel_state.initialize_model_parallel(1, 1)
            # The loader calls it after each model, and it fails where there is no accelerator.
            torch.accelerator.empty_cache = lambda: None
            self.model: Any = get_model(vllm_config=self.config, model_config=draft)
        # The CPU's kernel takes the first layer's weight for all layers.
        self.model.model._normalize_context_k = self._normalize_context_keys
        self.hf_config, self.num_tokens = draft.hf_config, num_tokens
        self.is_dspark = method == "dspark"
        self.from_anchor = self.is_dspark and getattr(draft.hf_config, "sample_from_anchor", True)

    def _normalize_context_keys(self, keys: torch.Tensor) -> torch.Tensor:
        layers = self.model.model.layers
        return torch.stack(
            [layer.self_attn.k_norm(one) for layer, one in zip(layers, keys, strict=True)]
        )

    def share(self, embedding: torch.Tensor, head: torch.Tensor) -> None:
        """Gives the model what its checkpoint does not have."""
        if not getattr(self.model, "has_own_embed_tokens", False):
            self.model.model.embed_tokens.weight.data = embedding
        if not getattr(self.model, "has_own_lm_head", False):
            shared = self.model.lm_head
            shared.weight.data = head
            shared.quant_method.process_weights_after_loading(shared)  # packs it

    def hidden(self, tokens: torch.Tensor, aux: torch.Tensor) -> torch.Tensor:
        """Returns what the model makes of the block behind a text.  # [B, H]"""
        from vllm.forward_context import set_forward_context
        from vllm.v1.attention.backend import CommonAttentionMetadata
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder
        from vllm.v1.kv_cache_interface import FullAttentionSpec
        from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id

        length = len(tokens)
        num_slots = self.num_tokens + (not self.from_anchor)
        ids = torch.full((num_slots,), get_parallel_drafting_token_id(self.hf_config))
        ids[0] = tokens[-1]
        positions = torch.arange(length - 1, length - 1 + num_slots)
        metadata, slot_mapping = {}, {}
        for layer in self.model.model.layers:
            attn = layer.self_attn.attn
            spec = FullAttentionSpec(
                block_size=BLOCK,
                num_kv_heads=attn.num_kv_heads,
                head_size=attn.head_size,
                dtype=torch.float32,
            )
            attn.kv_cache = torch.zeros(
                NUM_BLOCKS + 1, attn.num_kv_heads, BLOCK, 2 * attn.head_size
            )
            builder = CPUAttentionMetadataBuilder(
                spec, [attn.layer_name], self.config, torch.device("cpu")
            )
            ends = torch.tensor([0, num_slots], dtype=torch.int32)
            metadata[attn.layer_name] = builder.build(
                0,
                CommonAttentionMetadata(
                    query_start_loc=ends,
                    query_start_loc_cpu=ends,
                    seq_lens=torch.tensor([length - 1 + num_slots], dtype=torch.int32),
                    num_reqs=1,
                    num_actual_tokens=num_slots,
                    max_query_len=num_slots,
                    max_seq_len=length - 1 + num_slots,
                    block_table_tensor=torch.arange(1, NUM_BLOCKS + 1, dtype=torch.int32)[None],
                    slot_mapping=positions + BLOCK,
                    causal=layer.self_attn.causal,
                ),
            )
            slot_mapping[attn.layer_name] = positions + BLOCK
        context = torch.arange(length - 1)
        self.model.precompute_and_store_context_kv(
            self.model.combine_hidden_states(aux), context, context + BLOCK
        )
        with set_forward_context(
            metadata, self.config, num_tokens=num_slots, slot_mapping=slot_mapping
        ):
            hidden: torch.Tensor = self.model(ids, positions)
        return hidden if self.from_anchor else hidden[1:]

    def draft(self, tokens: torch.Tensor, aux: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.hidden(tokens, aux)
        if self.is_dspark:
            return self._left_to_right(hidden, tokens[-1:])
        logits = self.model.compute_logits(hidden)
        return {"tokens": logits.argmax(-1), "logits": logits}

    def _left_to_right(self, hidden: torch.Tensor, token: torch.Tensor) -> dict[str, torch.Tensor]:
        base = self.model.compute_draft_logits(hidden)
        topk = getattr(self.hf_config, "dspark_draft_topk", None)
        found, steps, known = [], [], []
        for step in range(self.num_tokens):
            known.append(self.model.markov_embed(token))
            if topk is None:
                logits = base[step : step + 1] + self.model.markov_bias(known[-1])
            else:
                values, index = base[step : step + 1].topk(topk, dim=-1)
                logits = torch.full_like(base[:1], -torch.inf)
                logits = self.model.apply_markov_bias_gathered(known[-1], logits, values, index)
            token = self.model.map_draft_to_target(logits.argmax(-1))
            found.append(token)
            steps.append(logits)
        result = {"tokens": torch.cat(found), "logits": torch.cat(steps)}
        if self.model.model.confidence_head is not None:
            result["confidence"] = self.model.compute_confidence(hidden, torch.cat(known))
        return result


@torch.inference_mode()
def main(target: str, texts: str, output: str, *drafts: str) -> None:
    from safetensors.torch import load_file, save_file
    from vllm.config import set_current_vllm_config

    given = load_file(texts)
    parts = load_file(os.path.join(target, "model.safetensors"))
    results = {}
    for name, folder, number in (one.split("=") for one in drafts):
        oracle = DFlashOracle(target, folder, int(number))
        oracle.share(parts["model.embed_tokens.weight"], parts["lm_head.weight"])
        with set_current_vllm_config(oracle.config):
            made = [
                oracle.draft(tokens[:length], aux[: length - 1])
                for tokens, length, aux in zip(
                    given["tokens"], given["lengths"].tolist(), given["aux"], strict=True
                )
            ]
        for key in made[0]:
            results[f"{name}.{key}"] = torch.stack([one[key] for one in made])
    save_file(results, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
