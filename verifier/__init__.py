"""The target's side: vLLM engines that take drafts from elsewhere."""
