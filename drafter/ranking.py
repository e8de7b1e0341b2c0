"""From a head's logits to rankings."""

from __future__ import annotations

import torch

from paceline.scheduler.branching import Ranking


def rank(logits: torch.Tensor, num_ranked: int, vocab_size: int) -> list[Ranking]:
    """Returns the most probable tokens below ``vocab_size`` for each row of ``logits`` [P, V].

    The probabilities are those among these tokens, in float32. Of equally probable tokens the
    lowest is the first choice, however many are ranked: 16-bit logits are often equal.
    """
    probabilities = logits[:, :vocab_size].float().softmax(dim=-1)
    tokens = probabilities.argmax(dim=-1, keepdim=True)  # [P, 1]
    values = probabilities.gather(1, tokens)
    num_others = min(num_ranked, probabilities.shape[1]) - 1
    if num_others:
        others = probabilities.scatter_(1, tokens, -1.0).topk(num_others, dim=-1)
        tokens = torch.cat([tokens, others.indices], dim=-1)
        values = torch.cat([values, others.values], dim=-1)
    # Doubles hold both exactly, and all results come to the host in one transfer.
    rows = torch.stack([tokens.double(), values.clamp(0, 1).double()], dim=-1).tolist()
    return [[(int(token), value) for token, value in row] for row in rows]
