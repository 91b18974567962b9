# shellcheck shell=bash
# Sourced by demo and test: `ready_venv demo` or `ready_venv test` puts the repository's .venv in order.
#
# Idempotent: what was installed is remembered in a stamp (a checksum of what decides it), and while that has not
# changed nothing is asked of the network. PYTHON=... names the interpreter; it is used only to make the .venv.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

find_python() {
  local candidate seen=""
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10 python; do
    # Run it rather than look for it: a name on the PATH may be a version manager's empty promise.
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
    seen+=$("$candidate" -c 'import platform; print("", platform.python_version(), end="")' 2>/dev/null || true)
    [ -z "${PYTHON:-}" ] || break
  done
  die "needs Python 3.10 or newer${seen:+ (found$seen)}. Install one, or name it: PYTHON=/path/to/python3 $0"
}

make_venv() {
  # A .venv that was moved, or whose Python is gone, has the old paths in its scripts: it is made again.
  if "$VENV/bin/python" -c '' 2>/dev/null && grep -qsF "$VENV" "$VENV/bin/activate"; then
    return
  fi
  local python
  python=$(find_python)
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python has no venv module. On Debian or Ubuntu: apt-get install python3-venv"
  echo "making .venv with $("$python" --version)"
  "$python" -m venv --clear "$VENV"
}

# Usage: install NAME FILE... -- PIP-ARGUMENT...   Does nothing when the files are those of the last time.
install() {
  local name=$1 stamp sum files=()
  shift
  while [ "$1" != -- ]; do
    files+=("$1")
    shift
  done
  shift
  stamp=$VENV/installed-$name
  sum=$(cd "$ROOT" && "$VENV/bin/python" -c '
import hashlib, sys
digest = hashlib.sha256(sys.version.encode())
for path in sys.argv[1:]:
    digest.update(open(path, "rb").read())
print(digest.hexdigest())' "${files[@]}")
  [ "$(cat "$stamp" 2>/dev/null)" = "$sum" ] && return
  case $name in
    pip) echo "bringing pip in .venv up to date" ;;
    *) echo "installing into .venv (the first time this takes minutes: PyTorch is large)" ;;
  esac
  rm -f "$stamp"
  (cd "$ROOT" && "$VENV/bin/python" -m pip install -qq -c constraints.txt "$@") ||
    die "pip could not install; its message is above"
  echo "$sum" >"$stamp"
}

ready_venv() {
  make_venv
  if [ "$1" = test ]; then
    # `--group` reads the development tools from pyproject.toml; pip knows it from 25.1 on.
    "$VENV/bin/python" -m pip install --help | grep -- --group >/dev/null || install pip constraints.txt -- --upgrade pip
    install test pyproject.toml constraints.txt -- -e '.[torch,fast,parquet]' --group dev
    # Without what it needs for its own data sets (300 MB); what the tests need of it is in the group. From 3.11 on.
    if "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      install torchtitan constraints.txt -- --no-deps torchtitan
    fi
    bash "$ROOT/scripts/fetch_megatron"
  else
    install demo pyproject.toml constraints.txt -- -e '.[torch]'
  fi
  export PATH=$VENV/bin:$PATH
}
