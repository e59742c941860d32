#!/usr/bin/env bash
# Makes .venv from the pinned, hashed lock, checks for a JDK and downloads the jars. Safe to repeat: what is there and
# current is left alone (about a second). Starts nothing. Only what Debian's packages offer is installed outside .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
uv_version=0.13.8
stamp=$venv/.setup-stamp

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

on_debian_as_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_updated=
apt_install() {
  if [ -z "$apt_updated" ]; then
    apt-get update -qq >&2 || true  # an old list is better than none
    apt_updated=yes
  fi
  say "Installing $* with apt-get"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
    # Runs it: a version manager's shim can be on the PATH for a version that is not there.
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# From this exact interpreter, so that a new or moved one is noticed.
fingerprint() {
  { cat requirements.lock pyproject.toml tools/setup.sh; pwd; "$venv/bin/python" -VV; } | sha256sum | cut -d' ' -f1
}

make_venv() {
  local python version
  if ! python=$(find_python); then
    on_debian_as_root || die "Python 3.11, 3.12 or 3.13 is needed and was not found. Install one, or name it: PYTHON=… make"
    apt_install python3 python3-venv || true
    python=$(find_python) || die "Python 3.11, 3.12 or 3.13 is needed; Debian's package here is another version."
  fi
  say "Creating $venv with $("$python" -V)"
  rm -rf "$venv"
  if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    on_debian_as_root || die "$python cannot create virtual environments. On Debian: apt-get install python3-venv"
    rm -rf "$venv"
    apt_install "python$version-venv" || apt_install python3-venv
    "$python" -m venv "$venv"
  fi
}

install_packages() {
  say "Installing the locked packages (about 600 MB, some minutes the first time)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version"
  # pip knows a company's mirror from its own configuration; uv does not read that, so it is passed on.
  local index
  if [ -z "${UV_INDEX_URL:-}${UV_DEFAULT_INDEX:-}" ]; then
    index=$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)
    index=${PIP_INDEX_URL:-$index}
    [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
  fi
  export VIRTUAL_ENV="$PWD/$venv"
  # Every run of Dagster starts Python anew. Where Python may write nothing that it compiles (as in many containers), each
  # of them would compile all that it imports, seconds of it; so that is done here, once.
  "$venv/bin/uv" pip install --quiet --compile-bytecode --require-hashes -r requirements.lock
  # The build backend is in the lock, so nothing is downloaded here.
  "$venv/bin/uv" pip install --quiet --no-build-isolation --no-deps -e .
  "$venv/bin/python" -m compileall -q engagement_platform
}

have_java() { "$venv/bin/python" -c 'from engagement_platform.lake.jars import find_java; find_java()' 2>/dev/null; }

ensure_java() {
  have_java && return
  if on_debian_as_root; then
    apt_install openjdk-17-jdk-headless || apt_install default-jdk-headless || true
  fi
  have_java && return
  # Says in one sentence what is wrong and what to install.
  "$venv/bin/engagement-platform" setup >&2 || true
  exit 1
}

[ -x "$venv/bin/python" ] && "$venv/bin/python" -V >/dev/null 2>&1 || make_venv
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$(fingerprint)" ]; then
  install_packages
  fingerprint > "$stamp"
fi
ensure_java
# Quick when they are all there. Quiet, so that `make test` ends and `make run` begins with what matters.
jars=$("$venv/bin/engagement-platform" setup) || exit 1
[ "${1:-}" != --verbose ] || say "$jars"
