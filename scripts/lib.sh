# shellcheck shell=bash
# What the scripts here share; sourced, never run. Sets:
#   root     the repository
#   python   the interpreter to use: $PACELINE_PYTHON, or that of .venv
# and leaves the shell in the repository's root.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
# Relative to where the user stands, not to where the next line goes.
if [[ ${PACELINE_PYTHON:-} == [!/]*/* ]]; then export PACELINE_PYTHON="$PWD/$PACELINE_PYTHON"; fi
cd -- "$root" || exit
venv="$root/.venv"
python=${PACELINE_PYTHON:-$venv/bin/python}

# A user's settings for other projects must not reach into this environment.
unset PYTHONHOME PYTHONSTARTUP PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf '%s\n' "$*"; }

# The user can act on it: one sentence, exit code 2, as in the command line.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# run_logged LABEL LOG COMMAND...: run with the output in LOG and a line of progress now and then.
# Returns the command's exit code.
run_logged() {
  local label=$1 log=$2 start=$SECONDS code=0 child last=
  shift 2
  "$@" >"$log" 2>&1 </dev/null &
  child=$!
  # Bash keeps Ctrl-C from what runs in the background: hand it on, or the command would go on alone.
  # shellcheck disable=SC2064
  trap "kill -TERM $child 2>/dev/null; wait $child 2>/dev/null || :; exit 130" INT TERM HUP
  say "  $label"
  while kill -0 "$child" 2>/dev/null; do
    # In pieces, so that a command that is done is noticed at once.
    for _ in {1..50}; do
      kill -0 "$child" 2>/dev/null || break
      sleep 0.1
    done
    if kill -0 "$child" 2>/dev/null; then
      last=$(grep -oE '(Collecting|Downloading|Building) [^ ]+|Installing collected packages' \
        "$log" | tail -n 1) || :
      say "  $label … $((SECONDS - start)) s${last:+ ($last)}"
    fi
  done
  wait "$child" || code=$?
  trap - INT TERM HUP
  return "$code"
}

# paceline ARGUMENTS...: the command of the chosen environment.
paceline() {
  local command
  command="$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/paceline"
  [[ -x $command ]] || die "$command does not exist: run scripts/setup"
  "$command" "$@"
}
