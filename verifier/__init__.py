"""The target's side: hooks into vLLM that verify proposals and export hidden states."""
