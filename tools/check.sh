# ./run check: all of CI but the release build's tests. Every step runs even if one before it failed. Sourced by ./run.

failed=""
step() {  # step NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  say "$name"
  if ("$@"); then
    say "$name: passed, $((SECONDS - start)) s"
  else
    say "$name: FAILED, $((SECONDS - start)) s"
    failed="$failed  $name"
  fi
}

format() { git ls-files '*.cc' '*.h' | xargs .venv/bin/clang-format --dry-run -Werror; }

lint() { configure release && .venv/bin/python tools/lint.py; }

sanitize() {  # sanitize PRESET [CMAKE_BUILD_OPTION...]
  build "$@" && ctest --preset "$1" -j "$(cores)"
}

step "includes" .venv/bin/python tools/check_includes.py
step "format" format
step "lint" lint
step "compile and link for macOS" tools/macos_compile.sh
step "address and undefined-behaviour sanitizers, the fast tests" sanitize asan
step "thread sanitizer, the tests of base, link, fabric and comm" sanitize tsan --target base_test link_test fabric_test comm_test

[ -z "$failed" ] || die "check failed: $failed"
say "check passed"
