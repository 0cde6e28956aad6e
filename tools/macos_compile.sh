#!/usr/bin/env bash
# Compiles everything but the tests for macOS on arm64 and links its programs: cmake/macos/ says how. On a Mac there is
# nothing to do, since the build itself is the proof there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "$(uname -s)" != Darwin ] || exit 0

# The macOS wheel of MLX of the version that requirements.txt names.
mlx=$(sed -n 's/^\(mlx-metal==[^;]*\);.*/\1/p' requirements.txt)
if [ "$(cat build/macos/mlx/version 2>/dev/null)" != "$mlx" ]; then
  .venv/bin/python -m pip --disable-pip-version-check -q install --no-deps --only-binary=:all: --upgrade \
    --platform macosx_14_0_arm64 --target build/macos/mlx "$mlx"
  echo "$mlx" >build/macos/mlx/version
fi
cmake --preset macos >build/macos/configure.log 2>&1 || { cat build/macos/configure.log >&2; exit 1; }
cmake --build --preset macos
