"""From the target's configuration to the environment variables that vLLM reads at import."""

from __future__ import annotations

import os

from paceline.verifier.config import TargetConfig

MODEL_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's variable: 0 for its V1 model runner, 1 for V2; unset, vLLM chooses (V2 where it can)."""


def engine_environment(target: TargetConfig, run_folder: str) -> dict[str, str]:
    """Returns what must be set before the verifier's process imports torch and vLLM.

    ``MODEL_RUNNER`` is in it if it is set here: it is the user's choice, and goes along to the
    target's node.
    """
    chosen = {MODEL_RUNNER: os.environ[MODEL_RUNNER]} if MODEL_RUNNER in os.environ else {}
    return chosen | {
        "VLLM_NO_USAGE_STATS": "1",
        # Worker processes are spawned: a fork of a process with threads (Ray's) can deadlock.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "OMP_NUM_THREADS": str(target.threads),
        # vLLM's n-gram proposer is compiled by numba, which on its first call sets the number of
        # OpenMP threads, torch's included, to its own: by default all cores.
        "NUMBA_NUM_THREADS": str(target.threads),
        # On CPU: one process per engine (nothing spins on the drafter's core while it waits for a
        # worker), and no pinning, since two engines on one machine would pin to the same cores.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if target.tensor_parallel_size == 1 else "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TOKENIZERS_PARALLELISM": "false",
        # vLLM leaves sockets and files behind; here they go with the run's folder.
        "VLLM_RPC_BASE_PATH": run_folder,
        "TMPDIR": run_folder,
    }
