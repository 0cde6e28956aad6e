# Installs what ./run needs: packages of the system, and pinned wheels into .venv. Sourced by ./run at the repository root.

apt_packages="g++ cmake ninja-build pkg-config python3-venv libcli11-dev nlohmann-json3-dev libyaml-cpp-dev libspdlog-dev
  libfmt-dev libgtest-dev libgmock-dev libhwy-dev libisal-dev libsodium-dev libibverbs-dev"
apt_test_packages="ibverbs-utils perftest"  # programs that tests run on emulated cables
brew_packages="cmake ninja pkgconf python@3.13 cli11 nlohmann-json yaml-cpp spdlog fmt googletest highway isa-l libsodium"

say() { printf '== %s\n' "$*"; }
die() {
  printf '%s\n' "$@" >&2
  exit 1
}
cores() { getconf _NPROCESSORS_ONLN; }

# quietly LOG COMMAND...: the command's output goes to LOG, and to the screen only if it fails.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    return 1
  }
}

# need_packages [test]: the packages of the system that are not installed yet are installed; without the right to, the one
# line to run is printed.
need_packages() {
  if command -v apt-get >/dev/null; then
    need_apt_packages $apt_packages ${1:+$apt_test_packages}
  elif [ "$(uname -s)" = Darwin ]; then
    need_brew_packages
  else
    die "./run knows Debian 12, Ubuntu 24.04 (apt-get) and macOS 14 or later (Homebrew), and this is neither." \
      "Install what tools/install.sh lists by hand and build with: cmake --preset release && cmake --build --preset release"
  fi
}

need_apt_packages() {
  local package missing="" as_root=""
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    # sudo serves if it asks no password, or if somebody is there to answer.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=sudo
    else
      die "Packages are missing, and installing them needs root. Run this line as root, then ./run again:" \
        "  apt-get update && apt-get install -y --no-install-recommends$missing"
    fi
  fi
  say "installing with apt-get:$missing"
  quietly build/apt.log $as_root apt-get -o DPkg::Lock::Timeout=300 update
  quietly build/apt.log $as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $missing
}

need_brew_packages() {
  local package missing=""
  command -v brew >/dev/null ||
    die "Homebrew (https://brew.sh) is missing. Install it, and Apple's compiler with: xcode-select --install"
  xcode-select -p >/dev/null 2>&1 || die "Apple's compiler is missing. Run: xcode-select --install"
  for package in $brew_packages; do
    brew list --versions "$package" >/dev/null 2>&1 || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  say "installing with brew:$missing"
  quietly build/brew.log brew install $missing
}

# The first Python that the pinned wheels exist for and that can make a virtual environment. The system's comes first:
# what a version manager puts before it in PATH may be anything.
find_python() {
  local python
  for python in /usr/bin/python3 python3 /opt/homebrew/bin/python3 python3.14 python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  die "No Python from 3.11 to 3.14 with the venv module was found."
}

# need_wheels LIST...: .venv holds exactly what each list names. A copy of a list in .venv says that it is installed.
need_wheels() {
  local list python
  if ! .venv/bin/python -c '' 2>/dev/null; then
    python=$(find_python)
    say "making a virtual environment in .venv with $python"
    "$python" -m venv --clear .venv
  fi
  for list in "$@"; do
    if ! cmp -s "$list" ".venv/$list"; then
      say "installing $list from PyPI: $(grep -c '^[^#]' "$list") pinned wheels"
      quietly build/pip.log .venv/bin/python -m pip --disable-pip-version-check --no-input install \
        --no-deps --only-binary=:all: -r "$list"
      cp "$list" ".venv/$list"
    fi
  done
}
