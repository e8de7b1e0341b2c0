"""The command line. Subcommands load what they need when they run, so that ``--help`` needs
only the base dependencies."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from paceline import __version__
from paceline.errors import PacelineError, UserError

_COMMANDS = {
    "bench": "paceline.bench.command",
    "doctor": "paceline.cluster.doctor",
    "generate": "paceline.cluster.generate",
    "models": "paceline.cluster.models_command",
    "replay": "paceline.cluster.replay",
}
"""Module of each subcommand; its ``run(arguments)`` returns the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, 1 if some requests failed or the engine did, 2 if the
    user has something to correct, 130 if interrupted."""
    arguments = _parser().parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Whatever the terminal's encoding is, a result is not lost for a character.
            stream.reconfigure(errors="backslashreplace")
    try:
        command = importlib.import_module(_COMMANDS[arguments.command])
        code: int = command.run(arguments)
        return code
    except UserError as error:
        print(f"paceline: error: {error}", file=sys.stderr)
        return 2
    except PacelineError as error:
        print(f"paceline: error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "paceline":
            raise
        print(
            f"paceline: error: '{arguments.command}' needs the package {package}, which is not "
            "installed; install Paceline with its extra cpu or gpu",
            file=sys.stderr,
        )
        return 2
    except BrokenPipeError:
        # Whoever read our output has left: nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("paceline: interrupted", file=sys.stderr)
        return 130


def _terminate(number: int, frame: object) -> NoReturn:
    """Ends on SIGTERM and SIGHUP as on Ctrl-C: in order, with nothing left running."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline",
        description="Speculative decoding with draft and target on different accelerators.",
    )
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_bench(commands)
    _add_models(commands)
    _add_doctor(commands)
    _add_replay(commands)
    return parser


def _add_generate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("generate", help="complete prompts")
    parser.add_argument("--config", required=True, metavar="FILE", help="see ray_configs/")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="one user message, in the chat template")
    source.add_argument(
        "--input",
        metavar="FILE",
        help="JSONL, each line with 'prompt' or OpenAI 'messages', optionally 'id', max_tokens, "
        "temperature, top_p, top_k, seed, stop",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="JSONL, written as requests finish; default: stdout"
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume",
        action="store_true",
        help="go on with an output that was not finished: what is missing or failed is done now",
    )
    existing.add_argument(
        "--overwrite", action="store_true", help="replace an output that exists already"
    )
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="default: 0, greedy"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of sampled requests")
    parser.add_argument(
        "--compare", action="store_true", help="also decode plainly; compare speed and outputs"
    )
    _add_trace(parser)


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "bench",
        help="compare speed and outputs of several systems",
        description="LIST: values with commas between them; all combinations are measured.",
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="see ray_configs/")
    parser.add_argument(
        "--workload",
        required=True,
        metavar="FILE",
        help="JSONL, each line with 'prompt' or OpenAI 'messages', optionally 'id', 'category'",
    )
    parser.add_argument(
        "--categories", metavar="LIST", help="only lines with these; default: all lines"
    )
    parser.add_argument(
        "--systems",
        required=True,
        metavar="LIST",
        help="plain, vllm:NAME, paceline:NAME, paceline:NAME@MODE; NAME is a drafter of FILE, "
        "MODE a speculation.mode",
    )
    parser.add_argument("--num-speculative-tokens", default="4", metavar="LIST")
    parser.add_argument("--concurrency", default="1", metavar="LIST")
    parser.add_argument("--temperature", default="0", metavar="LIST")
    parser.add_argument("--dtype", metavar="LIST", help="default: target.dtype")
    parser.add_argument("--num-prompts", type=int, default=16, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--output", required=True, metavar="DIR", help="for results.json")
    parser.add_argument(
        "--resume", action="store_true", help="go on with what an interrupted run left in DIR"
    )
    _add_trace(parser)


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="a new file: passes, drafting and waits of all processes, for ui.perfetto.dev",
    )


def _add_models(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("models", help="list and fetch models that have an alias")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="aliases, and what is in the cache")
    fetch = actions.add_parser("fetch", help="bring a model into the cache")
    fetch.add_argument("alias")
    fetch.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("doctor", help="check this machine and a configuration")
    parser.add_argument("--config", metavar="FILE", help="check what it needs, too")
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="also run the target as its own drafter: its drafts must be accepted",
    )


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "replay", help="make the decisions of a recorded run again and compare them"
    )
    parser.add_argument("file", metavar="FILE", help="what speculation.record named")


if __name__ == "__main__":
    sys.exit(main())
