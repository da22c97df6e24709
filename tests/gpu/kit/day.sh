#!/usr/bin/env bash
# Runs checks on a machine with a GPU, in the checkout's root:
#
#     DAY_LIMIT_S=280 bash .gpu/kit/day.sh 0 1 2 3 4 5
#
# Each check is a process of its own with a time limit of its own; none depends on another. All of them together end
# within DAY_LIMIT_S seconds: a check gets what is left, and is skipped if that is too little for it. What they print
# goes to $OUT/day.log, what they find to $OUT/results.jsonl, line by line, so that a kill loses nothing. The last thing
# printed is a summary. DAY_TINY=1 runs everything small, on a CPU.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OUT="${OUT:-/tmp/gpu-out}"
mkdir -p "$OUT"
python=${DAY_PYTHON:-python3}
limit=${DAY_LIMIT_S:-280}

unpacked=$("$python" "$here/unpack.py") || echo "unpacking failed" | tee -a "$OUT/day.log"
eval "$unpacked"
[ -n "${DAY_PYTHONPATH:-}" ] && export PYTHONPATH="$DAY_PYTHONPATH"
export PYTHONUNBUFFERED=1 COLUMNS=150 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 VLLM_NO_USAGE_STATS=1
export XDG_CACHE_HOME="$GPU_HOME/cache" VLLM_CACHE_ROOT="$GPU_HOME/cache/vllm" TRITON_CACHE_DIR="$GPU_HOME/cache/triton"
export TORCHINDUCTOR_CACHE_DIR="$GPU_HOME/cache/inductor" HF_HOME="$GPU_HOME/cache/hf" USER="${USER:-root}" HOME="${HOME:-/root}"
mkdir -p "$XDG_CACHE_HOME"
tiny=${DAY_TINY:-0}
cli=("$python" -W ignore -m repl_rl)
repl() { printf '%q ' "${cli[@]}" "$@"; }
py() { printf '%q ' "$python" -W ignore "$@"; }
note() { # CHECK KEY VALUE...: a record of this script
  "$python" - "$@" >>"$OUT/results.jsonl" <<'END'
import json, sys
check, *pairs = sys.argv[1:]
values = {key: float(value) if value.replace(".", "", 1).isdigit() else value for key, value in zip(pairs[::2], pairs[1::2])}
print(json.dumps({"check": check, "name": "end", **values}))
END
}

run() { # CHECK LIMIT LEAST COMMAND: the command, for LIMIT seconds at most, unless fewer than LEAST are left
  local check=$1 most=$2 least=$3 command=$4 left=$((limit - SECONDS)) began=$SECONDS status
  if [ "$left" -lt "$least" ]; then
    echo "== check $check: skipped, $left s left" | tee -a "$OUT/day.log"
    note "$check" skipped "yes" left_s "$left"
    return
  fi
  [ "$tiny" = 1 ] && most=$((most * 8)) # a CPU may be busy
  [ "$most" -lt "$left" ] || most=$left
  echo "== check $check, at ${SECONDS} s, for $most s at most" | tee -a "$OUT/day.log"
  timeout --kill-after=5 "$most" bash -c "$command" >>"$OUT/day.log" 2>&1
  status=$?
  echo "== check $check ended with status $status after $((SECONDS - began)) s" | tee -a "$OUT/day.log"
  note "$check" status "$status" seconds "$((SECONDS - began))"
}

if [ "$tiny" = 1 ]; then
  kernels="--quick --many 0" rollout="--quick" host_time="--quick"
  doctor="" steps="--set model.path=nano --set engine.context_tokens=512 --set engine.places=16 --set kernel.size=16 --set budget.line_tokens=48 \
    --set budget.lines=4 --set budget.tokens=128 --set train.prompts_per_step=2 --set train.group_size=4 --set train.micro_batch=4 --set eval.problems=8"
else
  kernels="--sessions 64 --rounds 2 --stock-kernels 16 --many 0"
  rollout="--trajectories 256 --concurrency 256 --kernels 256 --rounds 2" host_time=""
  doctor="--set engine.context_tokens=2048 --set budget.tokens=512" steps="--set model.path=\$folder --set train.prompts_per_step=8 \
    --set budget.tokens=1024 --set budget.lines=12 --set eval.problems=32 --set train.micro_batch=8"
fi
folder="folder=\$($(py -c "import sys; sys.path.insert(0, '$here/checks'); from common import model_folder; print(model_folder('0.6B'))") | tail -n 1)"
backend=$([ "${GPU_HAS_VLLM:-0}" = 1 ] && echo vllm || echo transformers)
[ "$tiny" = 1 ] && backend=${DAY_BACKEND:-transformers}

"$python" -c "import flashinfer" 2>/dev/null || export VLLM_USE_FLASHINFER_SAMPLER=0
has_vllm=$("$python" -c "import importlib.util as util; print(int(util.find_spec('vllm') is not None))")
for check in "$@"; do
  case $check in
    6 | 7 | 7l | 7f | 11 | 12 | 13)
      if [ "$has_vllm" = 0 ]; then
        echo "== check $check: skipped, vLLM is not here" | tee -a "$OUT/day.log"
        note "$check" skipped "no vLLM"
        continue
      fi ;;
  esac
  case $check in
    0) run 0 60 10 "nvidia-smi; $(repl doctor); $(py "$here/checks/c0_environment.py")" ;;
    1) run 1 120 30 "$(repl doctor --train --set engine.backend=transformers)" ;;
    2) run 2 60 15 "$(py "$here/checks/c2_attention.py")" ;;
    3) run 3 130 30 "$(py "$here/checks/c3_loss.py")" ;;
    4) run 4 40 15 "$(py "$here/checks/c4_writes.py")" ;;
    5) run 5 60 20 "$(repl bench kernels --json "$OUT/kernels.json") $kernels" ;;
    6) run 6 190 60 "$(py "$here/checks/c6_vllm.py")" ;;
    7) run 7 190 70 "$(py "$here/checks/c7_throughput.py" default)" ;;
    7l) run 7l 110 60 "$(py "$here/checks/c7_throughput.py" large)" ;;
    7f) run 7f 110 60 "$(py "$here/checks/c7_throughput.py" full)" ;;
    8) rm -rf "$GPU_HOME/runs/gpu-1"
       run 8 160 60 "$folder; $(repl train gpu-1 --set train.steps=2 --set train.warmup_steps=0 --set "engine.backend=$backend" --set model.chat_template_kwargs={} --runs "$GPU_HOME/runs") $steps; \
         $(py "$here/checks/c8_metrics.py" "$GPU_HOME/runs/gpu-1/metrics.jsonl"); \
         $(repl train gpu-1 --dry-run --like "$GPU_HOME/runs/gpu-1" --set "engine.backend=$backend" --set model.chat_template_kwargs={}) $steps" ;;
    9) run 9 60 20 "$(py "$here/checks/c9_flex.py")" ;;
    10) run 10 90 30 "$folder; $(repl doctor --train --set engine.backend=transformers) --model \$folder --set model.dtype=bfloat16 $doctor" ;;
    11) run 11 110 50 "$(repl bench rollout --json "$OUT/rollout.json") $rollout" ;;
    12) run 12 110 50 "$(repl doctor --train --set engine.backend=vllm --set model.dtype="$([ "$tiny" = 1 ] && echo float32 || echo bfloat16)")" ;;
    13) run 13 80 40 "$(py -m studies.host_time --json "$OUT/host_time.json") $host_time" ;;
    *) echo "no check $check" ;;
  esac
done
echo "== all ended at ${SECONDS} s"
"$python" "$here/summary.py" "$OUT/results.jsonl" "$OUT/day.log"
