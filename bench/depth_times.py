"""How long one depth of branches takes a draft model, by rows.

``python -m paceline.bench.depth_times --model smollm2-135m-instruct --layers 3`` prints, for 1 to
256 paths of one request, the time of a forward that extends each of them by one token, and the rows
per second. With ``--layers`` the model is cut to its first ones, which has the cost of a smaller
draft and not its acceptance.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path as File

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline import models
from paceline.drafter.config import DrafterConfig
from paceline.drafter.draft_model import CausalLMDrafter
from paceline.drafter.model import DraftRequest, Path
from paceline.errors import UserError

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DEPTHS = 4
"""The first one, which takes in the prompt's last token as well, is left out."""
REPEATS = 4
NUM_RANKED = 8


def cut(model: str, dtype: str, num_layers: int, folder: File) -> File:
    """Saves the first layers of ``model`` in ``folder``; returns it."""
    source = models.resolve(model, dtype)
    whole = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    whole.model.layers = whole.model.layers[:num_layers]
    whole.config.num_hidden_layers = num_layers
    if getattr(whole.config, "layer_types", None):
        whole.config.layer_types = whole.config.layer_types[:num_layers]
    whole.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def depth_times(draft: CausalLMDrafter, num_rows: int, context: int) -> list[float]:
    """Returns the seconds of each depth, all repeats together."""
    generator = random.Random(0)
    vocab_size = draft.vocab_size
    seconds = []
    for _ in range(REPEATS):
        request = DraftRequest([generator.randrange(vocab_size) for _ in range(context)])
        draft.open(request)
        while not draft.is_ready(request):
            draft.prepare(request)
        firsts = generator.sample(range(vocab_size), num_rows)
        paths: list[tuple[int, ...]] = [(token,) for token in firsts]
        for depth in range(DEPTHS):
            started = time.perf_counter()
            found = draft.extend([Path(request, p) for p in paths], 1, NUM_RANKED, vocab_size)
            if depth:
                seconds.append(time.perf_counter() - started)
            paths = [
                (*path, rankings[0][0][0]) for path, rankings in zip(paths, found, strict=True)
            ]
        draft.close(request)
    return seconds


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each number of rows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.depth_times")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="alias or folder")
    parser.add_argument("--layers", type=int, help="cut the model to its first layers")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=300, help="tokens before the paths")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="paceline-cut-") as folder:
        try:
            model = options.model
            if options.layers:
                model = str(cut(model, options.dtype, options.layers, File(folder)))
            config = DrafterConfig(name="draft", method="draft_model", model=model)
            draft = CausalLMDrafter(config, options.dtype)
            draft.load()
        except (UserError, ValueError) as error:
            print(f"paceline: {error}", file=sys.stderr)
            return 2
        print("rows  ms per depth (min, median)  rows/s")
        for num_rows in ROWS:
            seconds = depth_times(draft, num_rows, options.context)
            middle = statistics.median(seconds)
            print(
                f"{num_rows:4}  {1e3 * min(seconds):10.1f} {1e3 * middle:10.1f}  "
                f"{num_rows / middle:10.0f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
