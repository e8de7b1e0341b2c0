"""Turn a GGUF file into a model folder that both vLLM and transformers load.

Run as a file of its own, in a process of its own: torch and transformers are needed for this only,
and the memory they take ends with the process. It imports nothing of Paceline for that reason.

    python -P model_convert.py GGUF FOLDER DTYPE
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

MISSING_PACKAGE = 3
"""Exit code for: a package that the conversion needs is not installed (named on stderr)."""


def convert(gguf: Path, folder: Path, dtype: str) -> None:
    """Write weights, config, tokenizer and chat template of `gguf` into the existing `folder`."""
    # Everything is on disk already; a look at a hub could only cost time or fail.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    warnings.simplefilter("ignore")

    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    transformers.utils.logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=getattr(torch, dtype), quantization_config=GgufConfig(dequantize=True)
    )
    # The weights are plain now: a config that still says GGUF would make vLLM look for one.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.architectures = ["LlamaForCausalLM"]
    model.save_pretrained(folder, max_shard_size="100GB")
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    except ModuleNotFoundError as error:
        print(error.name, file=sys.stderr)
        sys.exit(MISSING_PACKAGE)
