#!/usr/bin/env bash
# The demo, once all is built (./run demo [--cables K]): a real model learns to write docstrings, by full fine-tuning on
# two ranks, over TCP or over K emulated cables. Both train the same weights, bit for bit.
# What is done already is skipped; ./run demo goes on with a training that was interrupted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=.venv/bin/python
trunkline=build/release/trunkline
made=.cache/demo        # the model as it comes, the data set, answers
output=demo-output      # the trained model; that of a run over cables lies beside it
made_run=$made          # what belongs to one of the two runs
cables=""               # emulated, between the two ranks; none: TCP
ranks=2 rows=8 steps=24 # part of an epoch
rate=1e-4

say() { printf '\n== %s\n' "$*"; }
fail() {
  printf 'demo: %s\n' "$@" >&2
  exit 1
}

# answer MODEL FILE: the model's answer to the sample prompt, which is kept in FILE.
answer() {
  if [ ! -f "$2" ]; then
    "$trunkline" generate --model "$1" --prompt - --max-tokens 80 <$made/data/sample.txt >"$2.partial" ||
      fail "no answer came from $1; what is said above is why"
    mv "$2.partial" "$2"
  fi
  sed 's/^/  | /' "$2"
}

train() {
  local resume=""
  if [ -f $output/settings.yaml ]; then
    resume=yes
    say "going on with the training that was interrupted"
  fi
  rm -f $made_run/after.txt
  # tee -i: after Ctrl-C the ranks finish their step, save and say so.
  "$trunkline" launch -n $ranks ${cables:+--cables "$cables"} -- "$trunkline" train --model $made/model --data $made/data --output $output ${resume:+--resume} \
    --mask-prompt --batch-size $rows --iters $steps --learning-rate $rate \
    --val-batches 3 --steps-per-eval 8 --steps-per-report 1 2>&1 | tee -i $made_run/train.log ||
    fail "the training ended early; what is said above is why." \
      "To go on from its last checkpoint run ./run demo again; to begin again, remove $output first"
  grep -q "reload equal" $made_run/train.log || fail "$output was not proven equal to what was trained: see $made_run/train.log"
}

main() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --cables)
        [ $# -ge 2 ] || fail "--cables needs a number. Run: ./run demo --cables 3"
        cables=$2
        shift 2
        ;;
      --cables=*) cables=${1#--cables=} && shift ;;
      *) fail "unknown argument $1. Run: ./run demo [--cables K]" ;;
    esac
  done
  case "${cables%%:*}" in
    "" | [1-9] | [1-9][0-9]) ;;
    *) fail "--cables $cables: K or K:key=value,... with K from 1 to 64 is needed (docs/fabric.md)" ;;
  esac
  local tcp_output=$output
  if [ -n "$cables" ]; then output=$output-cables made_run=$made/cables; fi
  mkdir -p "$made_run"
  if ! [ -x "$trunkline" ] || ! [ -x "$python" ]; then fail "nothing is built yet. Run: ./run demo"; fi

  mkdir -p $made
  say "the model: SmolLM2-135M-Instruct as a Hugging Face checkpoint"
  "$python" tools/demo/make_model.py $made/model || fail "the model could not be made. Remove $made and run ./run demo again"
  say "the data: functions of Python's standard library and their docstrings"
  "$python" tools/demo/make_data.py $made/model $made/data || fail "the data set could not be made. Remove $made/data and run ./run demo again"
  epoch=$((($(wc -l <$made/data/train.jsonl) + rows - 1) / rows))

  say "what it is asked"
  sed 's/^/  | /' $made/data/sample.txt
  echo
  say "what it answers before training"
  answer $made/model $made/before.txt

  if [ -f $output/model.safetensors ]; then
    say "training: already done ($output; remove it to train again)"
  else
    say "training: every parameter, on $ranks ranks${cables:+ over emulated cables ($cables)}, $steps steps of $rows rows of the $epoch that an epoch takes"
    train
  fi
  if [ -n "$cables" ] && [ -f $tcp_output/model.safetensors ]; then
    cmp $tcp_output/model.safetensors $output/model.safetensors ||
      fail "the weights differ from those of the run over TCP in $tcp_output"
    say "the weights are those of the run over TCP in $tcp_output, bit for bit"
  fi

  say "what it answers after training"
  answer $output $made_run/after.txt

  "$python" tools/demo/plot_loss.py $output/metrics.jsonl $output/loss.svg "SmolLM2-135M-Instruct learns to write docstrings" ||
    fail "the loss could not be drawn from $output/metrics.jsonl"
  say "the trained model, a Hugging Face checkpoint, is in $output; its loss is drawn in $output/loss.svg"
  cat <<END
Ask it:
  $trunkline generate --model $output --prompt "Write the docstring of this Python function. ..."
Train a model of your own on data of your own: MODEL is a Hugging Face directory (Llama, Qwen2, Qwen3), DATA holds
train.jsonl and valid.jsonl with a row a line: {"messages": [...]}, {"prompt": ..., "completion": ...} or {"text": ...}
  $trunkline launch -n $ranks -- $trunkline train --model MODEL --data DATA --output OUTPUT --mask-prompt --epochs 1
END
  "$python" tools/demo/result.py $output/metrics.jsonl $steps $epoch
}

main "$@"
